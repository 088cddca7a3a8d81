"""`diagnose`: what `edgewise doctor` finds, and what the service itself knows, without secrets."""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import withhold_keys
from edgewise.core.python import module_command
from edgewise.edge.agent.commands.operation import Args, Call, Operation, checked
from edgewise.wire.mqtt.link import Link

_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/@\s\"]+(?=@)")


class NoDiagnosis(EdgewiseError):
    """`edgewise doctor` itself failed."""

    code = "no_diagnosis"
    retryable = True


def diagnose(deps: ApiDependencies, link: Link, home: Path) -> Operation:
    async def run(call: Call) -> dict[str, Any]:
        await call.progress("checking the machine")
        doctor = await _doctor(home)
        pool = deps.models.status()
        return {
            **doctor,
            "service": {
                "requests": deps.requests.open,
                "draining": deps.draining,
                "models": [asdict(model) for model in pool.models],
                "memory_budget_bytes": pool.budget_bytes,
                "link": {"connected": link.connected, "connects": link.connects},
            },
        }

    return Operation(name="diagnose", lane="control", check=checked(Args), run=run, repeatable=True)


def redacted(text: str) -> str:
    """Without API keys, and without user names and passwords in addresses."""
    return _PASSWORD_IN_URL.sub("(withheld)", withhold_keys(text))


async def _doctor(home: Path) -> dict[str, Any]:
    """`edgewise doctor --json` in a process of its own: it tries torch, which this process never loads."""
    process = await asyncio.create_subprocess_exec(
        *module_command("edgewise.cli.main"),
        "doctor",
        "--json",
        env={**os.environ, "EDGEWISE_HOME": str(home)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, told = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    try:
        report: dict[str, Any] = json.loads(redacted(out.decode(errors="replace")))
    except ValueError as error:
        reason = redacted(told.decode(errors="replace")).strip().splitlines()[-1:] or ["it said nothing"]
        raise NoDiagnosis(f"`edgewise doctor` ended with code {process.returncode}: {reason[0]}") from error
    return report
