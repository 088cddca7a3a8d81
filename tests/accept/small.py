"""An acceptance line as a test."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.accept.line import NotRun, load
from tests.nursery import NURSERY

OF_MEMORY = tuple(f"tests.accept.{name}" for name in ("answers_6", "cloud_5", "engine_7", "senses_5"))
"""Lines that measure what a service holds: what is forked shares with others, and holds, what it has not imported itself."""


def check_small(module: str) -> None:
    """For the test suite: a line must hold at its small count (its times apart), or say why it cannot be run here."""
    line = load(module)
    try:
        with NURSERY.executed() if module in OF_MEMORY else nullcontext():
            verdict = line.measure(line.small)
    except NotRun as reason:
        pytest.skip(str(reason))
    held = verdict.passed if verdict.correct is None else verdict.correct
    assert held, f"{verdict.figure} (bar: {line.bar})\n{verdict.details}"
