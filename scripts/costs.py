"""What tests cost in processor time, theirs and that of the processes they start: `make test TESTS="-p scripts.costs tests/cli"`.

Unlike pytest's `--durations` it tells the same on a busy machine. A process counts where it is waited for, so a service that the
tests of a file share counts for the test after which it ends; a test that began what is read once (imports, compiled models)
pays for those after it.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Generator
from typing import Any, cast

import pytest

SHOWN = 40
KEY = "cpu_s"


def used() -> tuple[float, float]:
    """Processor seconds of this process, and of its children that have ended."""
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime, theirs.ru_utime + theirs.ru_stime


class Costs:
    """Measures where tests run, sums up where they are reported; with pytest-xdist those are different processes."""

    def __init__(self) -> None:
        self._mine: Counter[str] = Counter()
        self._theirs: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.user_properties.append((KEY, used()))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before: Any = dict(item.user_properties)[KEY]
        report.user_properties = [
            *((name, value) for name, value in report.user_properties if name != KEY),
            (KEY, [now - then for now, then in zip(used(), before, strict=True)]),
        ]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # from the beginning of its set-up
            self._mine[report.nodeid], self._theirs[report.nodeid] = cast("Any", dict(report.user_properties)[KEY])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        both = self._mine + self._theirs
        files: Counter[str] = Counter()
        for test, seconds in both.items():
            files[test.partition("::")[0]] += seconds
        write = terminalreporter.write_line
        write(
            f"processor seconds: {sum(self._mine.values()):.0f} of tests, {sum(self._theirs.values()):.0f} of processes"
        )
        for title, costs in (("file", files), ("test", both)):
            write(f"{'seconds':>9}  {title}")
            for name, seconds in costs.most_common(SHOWN):
                write(f"{seconds:9.1f}  {name}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(), "costs of tests")
