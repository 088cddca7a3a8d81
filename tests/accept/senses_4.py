"""On a CUDA card: every rung of ViT-B/16's ladder is timed with eight pictures, and the quickest that passes is chosen."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.accept.cards import climb, details, faults, need_card, shown, vit_reference
from tests.accept.line import Line, Verdict, main


def measure(count: int) -> Verdict:
    """`count` climbs."""
    need_card()
    wrong: list[str] = []
    figure = ""
    found = {}
    for _ in range(count):
        reference = vit_reference()
        with tempfile.TemporaryDirectory() as folder:
            _, records = climb(reference, Path(folder))
        wrong += faults(records, reference.gate)
        figure, found = shown(records, reference.many), details(records)
    return Verdict(figure=figure, passed=not wrong, details={"faults": wrong, **found})


LINE = Line(
    number=4,
    title="ViT-B/16 in fp16 on a CUDA card, batch 8: every rung timed and told, the quickest that passes the gate is chosen",
    bar="a time or a reason for every rung; the quickest that passes is chosen; no node of a card's rung on the CPU",
    count=1,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.senses_4")
