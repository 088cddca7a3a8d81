"""Schemathesis (property-based requests from an OpenAPI document) against the service: no answer of 500 and above."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import httpx

from tests.foreign.openai_document import write_document
from tests.foreign.relay import Relay
from tests.foreign.suite import Report, served
from tests.foreign.tools import python_environment

VERSION = "4.32.5"
ROUNDS = 12
# The phase "coverage" is left out: on OpenAI's document it alone makes tens of thousands of requests, nearly all answered 400.
OURS = "^/(v1|edgewise)/"


def run(cases: int = 2000, *, first_seed: int = 1) -> list[Report]:
    """At least `cases` requests each from OpenAI's operations and from our own document."""
    python = python_environment("schemathesis", [f"schemathesis=={VERSION}"])
    with (
        tempfile.TemporaryDirectory() as name,
        served(EDGEWISE_ENGINE__MAX_CONTEXT="96", EDGEWISE_LIMITS__REQUEST_TIMEOUT_S="60") as first,
        Relay(first.target, first.model) as second,
    ):
        folder = Path(name)
        openai, own = folder / "openai.json", folder / "own.json"
        write_document(openai)
        own.write_text(httpx.get(f"{first.target}/openapi.json", trust_env=False).text)
        return [
            _fuzz(python, document, relay, title, cases, first_seed, folder)
            for title, document, relay in (("OpenAI's operations", openai, first), ("our own document", own, second))
        ]


def _fuzz(python: Path, document: Path, relay: Relay, title: str, cases: int, first_seed: int, folder: Path) -> Report:
    """Runs with one seed after the other until enough requests crossed the wire."""
    seed = first_seed
    failures: dict[str, str] = {}
    operations = sum(len(methods) for methods in json.loads(document.read_text())["paths"].values())
    while relay.requests < cases and seed < first_seed + ROUNDS:
        command = [str(python.with_name("st")), "run", str(document), "--url", relay.url, "--seed", str(seed)]
        command += ["--checks", "not_a_server_error", "--phases", "fuzzing", "--continue-on-failure"]
        command += ["--max-examples", str(max(1, cases // operations)), "--no-shrink", "--request-timeout", "120"]
        command += ["--include-path-regex", OURS, "--suppress-health-check", "all"]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=3600)
        if done.returncode not in (0, 1):
            raise RuntimeError(
                f"schemathesis ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
            )
        if done.returncode == 1:
            failures[f"seed {seed}"] = done.stdout[-3000:]
        seed += 1
    if relay.requests < cases:
        failures["cases"] = f"only {relay.requests} requests in {ROUNDS} rounds"
    statuses = relay.statuses()
    return Report(
        suite=f"schemathesis, {title}",
        version=VERSION,
        passed=relay.requests,
        unexplained=failures,
        requests=relay.requests,
        server_errors=relay.server_errors,
        details={"seeds": [first_seed, seed - 1], "statuses": dict(statuses), "faults": relay.faults[:5]},
    )
