"""On a CUDA card: every rung of ViT-B/16's ladder is timed with eight pictures, and the quickest that passes is chosen.

Without a card the record of one stands for it, if it is of this code (`tests.accept.card_record`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.accept.card_record import recorded
from tests.accept.cards import climb, details, faults, need_card, shown, vit_reference
from tests.accept.line import Line, Verdict, main


def card() -> tuple[list[str], list[str], dict[str, Any]]:
    """What is wrong, what was measured, and all of it."""
    need_card()
    reference = vit_reference()
    with tempfile.TemporaryDirectory() as folder:
        _, records = climb(reference, Path(folder))
    return faults(records, reference.gate), [shown(records, reference.many)], details(records)


def measure(count: int) -> Verdict:
    """`count` climbs, or the record of one."""
    if not torch.cuda.is_available():
        record = recorded("senses_4")
        figure = f"recorded on {record['on']}: {record['figure']}"
        return Verdict(figure=figure, passed=not record["faults"], details=record)
    wrong: list[str] = []
    figures: list[str] = []
    found: dict[str, Any] = {}
    for _ in range(count):
        faulty, figures, found = card()
        wrong += faulty
    return Verdict(figure="; ".join(figures), passed=not wrong, details={"faults": wrong, **found})


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
