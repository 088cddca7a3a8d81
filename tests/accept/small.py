"""An acceptance line as a test."""

from __future__ import annotations

import pytest

from tests.accept.line import NotRun, load


def check_small(module: str) -> None:
    """For the test suite: a line must hold at its small count (its times apart), or say why it cannot be run here."""
    line = load(module)
    try:
        verdict = line.measure(line.small)
    except NotRun as reason:
        pytest.skip(str(reason))
    held = verdict.passed if verdict.correct is None else verdict.correct
    assert held, f"{verdict.figure} (bar: {line.bar})\n{verdict.details}"
