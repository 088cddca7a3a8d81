"""Ladders of encoders on a CUDA card: `python -m scripts.bench_card OUT` writes OUT/cards.json. No network, no model files.

Kept as docs/figures/cards.json it is the card's half of acceptance lines on machines without one (`tests.accept.card_record`).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.accept import senses_3, senses_4
from tests.accept.card_record import code_digest
from tests.accept.cards import need_card


def main() -> None:
    out = Path(sys.argv[1])
    need_card()
    lines: dict[str, dict[str, Any]] = {}
    for name, run in (("senses_4", senses_4.card), ("senses_3", senses_3.card)):
        wrong, figures, found = run()
        lines[name] = {"figure": "; ".join(figures), "faults": wrong, "details": found}
        print(name, lines[name]["figure"], wrong, flush=True)
    record = {
        "device": torch.cuda.get_device_name(),
        "date": time.strftime("%F", time.gmtime()),
        "torch": torch.__version__,
        "code": code_digest(),
        "lines": lines,
    }
    (out / "cards.json").write_text(json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
