"""What a CUDA card showed, for machines without one: the record that `python -m scripts.bench_card` writes.

A record holds for the code that it was made with: it carries a digest of the encoders' sources, and one of other code counts as
none. So a line passes on a machine without a card only while the card's half was measured on the very code at hand.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.accept.line import NotRun

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "docs" / "figures" / "cards.json"
_SOURCES = (
    "models/edgewise/models/encoders/*.py",
    "models/edgewise/models/vision/efficientnet.py",
    "models/edgewise/models/whisper/encoder.py",
    "tests/accept/cards.py",
)


def code_digest() -> str:
    """Of everything that decides what a card's ladder does."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in ROOT.glob(pattern)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def recorded(line: str) -> dict[str, Any]:
    """A line's record: "figure", "faults", and "on", which says where and when.

    Raises:
        NotRun: There is none, or it is of other code.
    """
    if not PATH.exists():
        raise NotRun("no CUDA device, and no record of one")
    found = json.loads(PATH.read_text())
    if found["code"] != code_digest():
        raise NotRun("no CUDA device, and the record of one is of other code: run scripts.bench_card on a card")
    record: dict[str, Any] = {**found["lines"][line], "on": f"{found['device']}, {found['date']}"}
    return record
