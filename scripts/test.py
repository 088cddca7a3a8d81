"""The whole test suite: `python -m scripts.test`; with arguments, plain pytest on what they name.

There are two processes more than cores, since tests of services wait a third of their time. Files go to the processes in their
order, so tests/accept, whose few tests take longest, begins first, and no process is left alone with it at the end. Numeric
libraries get one thread in each process, so that the processes do not fight over the cores.

What fails in the whole suite runs again by itself, twice. Where few tests failed and each passed both times, the run ends
well, with a table of them, their first tracebacks and a file, build/flaky.json: such a test depends on chance and has to be
mended, but it says nothing of the change that is tested. With arguments a failure is a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REPORT = Path("build") / "flaky.json"
MOST = 5
TIMES = 2
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "GOMP_SPINCOUNT": "1000",  # where a test has several threads all the same: one that waits leaves the core to others
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
PYTEST = (sys.executable, "-m", "pytest", "-q")
RULE = "=" * 30


@dataclass(slots=True)
class Failure:
    """Attributes:
    tests: Ids of the tests that failed by it: one, or those of a file whose common set-up failed.
    traceback: Of the first of them.
    """

    tests: list[str]
    traceback: str


class Failures:
    """A pytest plugin that keeps what failed; where several processes run the tests, it sees what all of them report."""

    def __init__(self) -> None:
        self._by_cause: dict[tuple[str, str], Failure] = {}

    @property
    def found(self) -> list[Failure]:
        return list(self._by_cause.values())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._keep(report, report.when == "setup")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._keep(report, False)

    def _keep(self, report: pytest.TestReport | pytest.CollectReport, shared: bool) -> None:
        """One failure for each test; but a fixture that a file's tests share fails for all of them."""
        cause = (report.nodeid.partition("::")[0], report.longreprtext) if shared else (report.nodeid, "")
        if cause not in self._by_cause:
            print(f"\nfailed: {report.nodeid}", flush=True)  # pytest itself tells only at the end
        failure = self._by_cause.setdefault(cause, Failure([], report.longreprtext))
        if report.nodeid not in failure.tests:
            failure.tests.append(report.nodeid)


def run_again(failure: Failure) -> bool:
    """Whether its tests pass alone, each time."""
    command = [*PYTEST, "-p", "no:xdist", *failure.tests]
    for number in range(1, TIMES + 1):
        print(f"\n{RULE} alone, {number} of {TIMES}: {' '.join(failure.tests)} {RULE}", flush=True)
        if subprocess.run(command, check=False).returncode != 0:
            return False
    return True


def verdict(code: int, failures: Sequence[Failure]) -> int:
    """The exit code of the suite, given pytest's own and what failed; writes and prints what counts as flaky."""
    REPORT.unlink(missing_ok=True)
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failures) <= MOST:
        return code
    if not all(run_again(failure) for failure in failures):
        print(f"\n{RULE} FAILED: not all of what failed passes alone {RULE}", flush=True)
        return code
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([asdict(failure) for failure in failures], indent=1) + "\n", encoding="utf-8")
    print(f"\n{RULE} FLAKY: failed once, passed {TIMES} times alone {RULE}")
    for failure in failures:
        print(*failure.tests, failure.traceback, "-" * 80, sep="\n")
    count = sum(len(failure.tests) for failure in failures)
    print(
        f"FLAKY: {count} of the tests failed once and passed {TIMES} times alone (see above, and {REPORT})", flush=True
    )
    return 0


def suite(*flags: str) -> int:
    """Run pytest in the current directory; the exit code."""
    failures = Failures()
    code = pytest.main(["-q", *flags], plugins=[failures])
    return verdict(int(code), failures.found)


def main() -> None:
    os.chdir(ROOT)
    os.environ.update(ENVIRONMENT)
    # Hundreds of processes import the same modules: where none may keep bytecode, each compiles them anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if sys.argv[1:]:
        raise SystemExit(subprocess.run([*PYTEST, *sys.argv[1:]], check=False).returncode)
    processes = len(os.sched_getaffinity(0)) + 2
    raise SystemExit(suite(f"-n{processes}", "--dist=loadfile", "--no-loadscope-reorder"))


if __name__ == "__main__":
    main()
