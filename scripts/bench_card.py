"""Ladders of encoders on a CUDA card, as JSON: `python -m scripts.bench_card OUT`. No network, no model files."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.accept import senses_3, senses_4
from tests.accept.cards import need_card
from tests.accept.line import Verdict


def main() -> None:
    out = Path(sys.argv[1])
    need_card()
    tries: dict[str, Callable[[], Any]] = {
        "senses_4": lambda: senses_4.measure(1),
        "senses_3 (card)": senses_3.card,
    }
    for name, run in tries.items():
        try:
            found = run()
            text = json.dumps(found, default=lambda it: asdict(it) if isinstance(it, Verdict) else str(it), indent=1)
        except Exception:  # noqa: BLE001 - the others are still worth their time
            text = traceback.format_exc()
        (out / f"{name.split()[0]}.json").write_text(text)
        print(name, text[-3000:], flush=True)


if __name__ == "__main__":
    main()
