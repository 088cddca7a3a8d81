"""The rule by which chance does not decide over a run of the suite: `scripts.test.suite` on tiny suites, as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.test import MOST, REPORT, ROOT

HEAD = """
from pathlib import Path
import pytest

def run_number(name):
    path = Path(name)
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return len(path.read_text())

def test_right():
    run_number("right")
"""
ONCE = """
def test_first_run_fails():
    assert run_number("once") > 1, "by chance"
"""
ALWAYS = """
def test_all_runs_fail():
    run_number("always")
    assert False
"""
SECOND_TIME_ALONE = """
def test_third_run_fails():
    assert run_number("third") == 2
"""
MANY = f"""
@pytest.mark.parametrize("number", range({MOST + 1}))
def test_many(number):
    assert run_number("many" + str(number)) > 1
"""
SHARED = f"""
@pytest.fixture(scope="module")
def service():
    assert run_number("service") > 1

@pytest.mark.parametrize("number", range({MOST + 1}))
def test_with_a_service(service, number):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a suite; with the report of an earlier run."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (tmp_path / REPORT).parent.mkdir()
    (tmp_path / REPORT).write_text("[]")
    return tmp_path


def run(folder: Path, *tests: str, flags: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and output."""
    (folder / "test_tiny.py").write_text(HEAD + "".join(tests))
    code = f"import sys; from scripts.test import suite; sys.exit(suite(*{flags!r}))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # few plugins: a short start
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def runs(folder: Path, name: str) -> int:
    return len((folder / name).read_text())


def test_a_suite_that_passes_leaves_no_report(folder: Path) -> None:
    code, output = run(folder)
    assert (code, "FLAKY" in output, (folder / REPORT).exists()) == (0, False, False)


@pytest.mark.parametrize("flags", [(), ("-pxdist", "-n2", "--dist=loadfile")])
def test_what_fails_once_and_passes_twice_alone_is_told_and_costs_nothing(folder: Path, flags: tuple[str, ...]) -> None:
    code, output = run(folder, ONCE, flags=flags)
    assert code == 0, output
    assert "failed: test_tiny.py::test_first_run_fails" in output.splitlines()
    assert (runs(folder, "once"), runs(folder, "right")) == (3, 1)
    (told,) = json.loads((folder / REPORT).read_text())
    assert told["tests"] == ["test_tiny.py::test_first_run_fails"]
    assert "by chance" in told["traceback"]
    table = output[output.index("FLAKY") :]
    assert told["traceback"] in table
    assert output.splitlines()[-1].startswith("FLAKY: 1 ")


@pytest.mark.parametrize(
    ("wrong", "times"), [(ALWAYS, {"always": 2}), (SECOND_TIME_ALONE, {"third": 3})], ids=["always", "in the end"]
)
def test_what_fails_again_fails(folder: Path, wrong: str, times: dict[str, int]) -> None:
    code, output = run(folder, ONCE, wrong)
    assert (code, "FLAKY" in output, (folder / REPORT).exists()) == (1, False, False)
    assert {name: runs(folder, name) for name in times} == times


def test_more_than_a_few_are_not_tried_again(folder: Path) -> None:
    code, output = run(folder, MANY)
    assert (code, "FLAKY" in output, runs(folder, "many0")) == (1, False, 1)


def test_a_common_set_up_that_fails_is_one_failure(folder: Path) -> None:
    code, output = run(folder, SHARED)
    assert code == 0, output
    (told,) = json.loads((folder / REPORT).read_text())
    assert len(told["tests"]) == MOST + 1
    assert runs(folder, "service") == 3


def test_a_file_that_cannot_be_read_fails(folder: Path) -> None:
    code, output = run(folder, "import absent_module\n")
    assert (code, "FLAKY" in output) == (pytest.ExitCode.INTERRUPTED, False)
