"""The runner of acceptance lines, and how they are numbered."""

from __future__ import annotations

import subprocess

import pytest

from scripts.accept import find_lines, run_line
from tests.accept.line import Line, NotRun, Verdict, load, run

NAMES = ("answers", "engine")


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_numbered_as_their_files(name: str) -> None:
    found = find_lines(name)
    assert [number for number, _ in found] == list(range(1, 9))
    assert [load(module).number for _, module in found] == list(range(1, 9))


def test_a_line_that_was_not_run_has_not_passed() -> None:
    def measure(_count: int) -> Verdict:
        raise NotRun("no root")

    line = Line(number=9, title="t", bar="b", count=1, small=1, measure=measure)
    outcome = run(line, 1, "command")
    assert not outcome.passed
    assert outcome.figure == "not run: no root"


def test_a_script_that_dies_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_args: object, **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 3, stdout="half a report {")

    monkeypatch.setattr(subprocess, "run", died)
    report = run_line(2, "tests.accept.answers_2")
    assert report["passed"] is False
    assert "code 3" in report["figure"]
