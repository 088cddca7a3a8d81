"""Clients that others wrote, each in an environment of its own, against a real service with the starter model."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.foreign.suite import Report, served
from tests.foreign.tools import node_environment, python_environment

FOLDER = Path(__file__).with_name("clients")
NODE_VERSION = "7.59.0"


@dataclass(frozen=True, slots=True)
class PythonClient:
    """A script of `clients/` and what it needs; the first requirement names the suite."""

    script: str
    requirements: tuple[str, ...]


PYTHON_CLIENTS = (
    PythonClient("langchain.py", ("langchain-openai==1.7.4",)),
    PythonClient("llamaindex.py", ("llama-index-llms-openai-like==0.8.1",)),
    PythonClient("litellm_client.py", ("litellm==1.110.2",)),
    PythonClient("instructor_client.py", ("instructor==1.17.0",)),
    PythonClient("pydanticai.py", ("pydantic-ai-slim[openai]==2.68.0",)),
)


def run() -> list[Report]:
    """Every client; raises `NotAvailable` where one cannot be installed."""
    commands = {"openai-node": (NODE_VERSION, _node_command())}
    for client in PYTHON_CLIENTS:
        name, _, version = client.requirements[0].partition("==")
        python = python_environment(client.script.removesuffix(".py"), client.requirements)
        commands[name] = (version, [str(python), str(FOLDER / client.script)])
    with served(
        "smollm2-135m-instruct", EDGEWISE_ENGINE__MAX_CONTEXT="2048", EDGEWISE_LIMITS__REQUEST_TIMEOUT_S="120"
    ) as relay:
        return [
            _ask(name, version, [*command, f"{relay.target}/v1", relay.model])
            for name, (version, command) in commands.items()
        ]


def _node_command() -> list[str]:
    """Node looks for packages beside the script: a link to it lies in the folder that has them."""
    folder = node_environment("openai-node", [f"openai@{NODE_VERSION}"])
    script = folder / "node.mjs"
    script.write_text((FOLDER / "node.mjs").read_text())
    return ["node", str(script)]


def _ask(name: str, version: str, command: list[str]) -> Report:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    try:
        outcome: dict[str, str] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        outcome = {"start": f"code {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}"}
    return Report(
        suite=name,
        version=version,
        passed=sum(not message for message in outcome.values()),
        unexplained={case: message for case, message in outcome.items() if message},
        requests=0,
        details={"cases": list(outcome)},
    )
