"""What a card showed of the language engine, for machines without one: what `python -m tests.accept.fast_2 --record` keeps.

As of `tests.accept.card_record`, it holds for the code that it was made with and for no other.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.accept.line import NotRun

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "docs" / "figures" / "gpu-vllm.json"
_SOURCES = (
    "kernels/edgewise/kernels/**/*.py",
    "models/edgewise/models/decoder/**/*.py",
    "appliance/edgewise/engine/**/*.py",
    "tests/bench/gpu*.py",
    "tests/accept/cuda.py",
    "tests/accept/engine_8.py",
    "tests/accept/fast_2.py",
)


def sources() -> list[Path]:
    return sorted({path for pattern in _SOURCES for path in ROOT.glob(pattern)})


def code_digest() -> str:
    """Of everything that decides what a card computes and how it is measured."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def recorded() -> dict[str, Any]:
    """The record.

    Raises:
        NotRun: There is none, or it is of other code.
    """
    if not PATH.exists():
        raise NotRun("no CUDA device with a vLLM beside it (EDGEWISE_VLLM_PYTHON), and no record of one")
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    if found["code"] != code_digest():
        raise NotRun("no CUDA device, and the record of one is of other code: run tests.accept.fast_2 on a card")
    return found
