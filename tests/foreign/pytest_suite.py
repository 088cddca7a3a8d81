"""A suite of pytest tests that others wrote, run by an interpreter of its own against a service behind a relay."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.foreign.junit import read_junit, sort_failures
from tests.foreign.relay import Relay
from tests.foreign.suite import Explained, Report
from tests.foreign.tools import cache

CASE_TIMEOUT_S = 120
SUITE_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestSuite:
    """Attributes:
    name, version: For the report.
    python: Interpreter with pytest, pytest-timeout and what the tests import.
    folder: Where pytest is started.
    files: Test files, from there.
    prefix: Start of class names in the result that says nothing.
    explained: Failures that are meant.
    options: Further arguments of pytest.
    """

    name: str
    version: str
    python: Path
    folder: Path
    files: Sequence[str]
    prefix: str
    explained: Sequence[Explained]
    options: Sequence[str] = ()

    def run(self, relay: Relay, environment: Mapping[str, str]) -> Report:
        """Raises `RuntimeError` with pytest's output when it could not run at all."""
        result = cache() / f"{self.name.replace(' ', '-').replace(',', '')}.xml"
        command = [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={CASE_TIMEOUT_S}"]
        done = subprocess.run(
            [*command, f"--junit-xml={result}", *self.options, *self.files],
            cwd=self.folder,
            env={**os.environ, **environment},
            check=False,
            capture_output=True,
            text=True,
            timeout=SUITE_TIMEOUT_S,
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
        passed, failed = read_junit(result, self.prefix)
        explained, unexplained = sort_failures(failed, self.explained)
        return Report(
            suite=self.name,
            version=self.version,
            passed=passed,
            explained=explained,
            unexplained=unexplained,
            requests=relay.requests,
            server_errors=relay.server_errors,
            details={"files": [*self.files], "statuses": dict(relay.statuses()), "faults": relay.faults[:5]},
        )
