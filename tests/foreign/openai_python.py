"""The API tests of openai-python, from its source distribution, for the resources that are served here."""

from __future__ import annotations

import os
import subprocess

from tests.foreign.junit import read_junit, sort_failures
from tests.foreign.suite import Explained, Report, served
from tests.foreign.tools import cache, python_environment, source_distribution

VERSION = "3.57.0"
SHA256 = "5a0a89d6a542efc85e2a8cec701ca9265b795d578c777828e10fafdf80e333b6"
REQUIREMENTS = (
    "aiohttp==3.14.4",
    "pytest==9.1.0",
    "pytest-asyncio==1.4.0",
    "pytest-timeout==2.4.0",
    "inline-snapshot==0.28.0",
    "rich",
    "time-machine",
    "dirty-equals",
    "nest-asyncio",
)
RESOURCES = ("chat/test_completions.py", "test_completions.py", "test_models.py", "test_responses.py")
EXPLAINED: tuple[Explained, ...] = ()


def run() -> Report:
    """Run them; raises `NotAvailable` without a network."""
    source = source_distribution("openai", VERSION, SHA256)
    python = python_environment("openai-tests", [f"openai=={VERSION}", *REQUIREMENTS])
    result = cache() / "openai-python.xml"
    with served() as relay:
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            "-o",
            "filterwarnings=",
        ]
        command += ["-o", "xfail_strict=false", "--timeout=120", f"--junit-xml={result}"]
        command += [f"tests/api_resources/{name}" for name in RESOURCES]
        environment = {**os.environ, "TEST_API_BASE_URL": f"{relay.url}/v1", "PYTHONPATH": ""}
        done = subprocess.run(
            command, cwd=source, env=environment, check=False, capture_output=True, text=True, timeout=1800
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
        passed, failed = read_junit(result, "tests.api_resources.")
        explained, unexplained = sort_failures(failed, EXPLAINED)
        return Report(
            suite="openai-python, API tests",
            version=VERSION,
            passed=passed,
            explained=explained,
            unexplained=unexplained,
            requests=relay.requests,
            server_errors=relay.server_errors,
            details={"resources": list(RESOURCES), "statuses": dict(relay.statuses()), "faults": relay.faults[:5]},
        )
