"""An acceptance line as a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import settings

from tests.accept.line import NotRun, load

ROOT = Path(__file__).resolve().parents[2]


def check_small(module: str) -> None:
    """For the test suite: a line must hold at its small count (its times apart), or say why it cannot be run here.

    One that other tests stand for runs in the nightly profile only.
    """
    line = load(module)
    lacking = [test for test in line.instead if not exists(test)]
    assert not lacking, f"no such tests, which are to stand for it: {lacking}"
    if line.instead and settings.get_current_profile_name() != "nightly":
        pytest.skip("other tests do the same in little; --hypothesis-profile=nightly runs the line too")
    try:
        verdict = line.measure(line.small)
    except NotRun as reason:
        pytest.skip(str(reason))
    held = verdict.passed if verdict.correct is None else verdict.correct
    assert held, f"{verdict.figure} (bar: {line.bar})\n{verdict.details}"


def exists(test: str) -> bool:
    """Whether the file defines the test: "tests/file.py::test_name"."""
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and bool(
        re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    )
