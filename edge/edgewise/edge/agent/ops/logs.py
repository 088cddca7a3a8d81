"""`logs`: the last lines of the service's own log, in parts that wait for the fleet like everything else."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from edgewise.core.log import RecentLines
from edgewise.edge.agent.commands.operation import Args, Call, Operation, checked, parse
from edgewise.wire.fleet import LogPart

_PART_BYTES = 64 * 1024
_LEVELS = ("debug", "info", "warning", "error")

Keep = Callable[[str, LogPart], Awaitable[None]]


class LogsArgs(Args):
    """Attributes:
    lines: How many of the latest.
    level: Only these and what is worse.
    """

    lines: int = Field(default=200, ge=1, le=5000)
    level: Literal["debug", "info", "warning", "error"] = "debug"


def logs(recent: RecentLines, keep: Keep) -> Operation:
    """Args:
    keep: Puts a part of a command's answer into the uplink.
    """

    async def run(call: Call) -> dict[str, Any]:
        args = parse(LogsArgs, call.args)
        worse = _LEVELS[_LEVELS.index(args.level) :]
        lines = [line for line in recent.last(5000) if _level(line) in worse][-args.lines :]
        parts = [*_parts(lines)]
        for index, part in enumerate(parts):
            await keep(call.id, LogPart(index=index, last=index == len(parts) - 1, lines=tuple(part)))
        return {"lines": len(lines), "parts": len(parts)}

    return Operation(name="logs", lane="control", check=checked(LogsArgs), run=run, repeatable=True)


def _parts(lines: Sequence[str]) -> Iterator[list[str]]:
    """At least one, each within what a message holds."""
    part: list[str] = []
    size = 0
    for line in lines:
        length = len(line.encode())
        if part and size + length > _PART_BYTES:
            yield part
            part, size = [], 0
        part.append(line)
        size += length
    yield part


def _level(line: str) -> str:
    """A line that was cut is no JSON any more; its head is."""
    try:
        return str(json.loads(line)["level"])
    except ValueError:
        return next((level for level in reversed(_LEVELS) if f'"level":"{level}"' in line[:200]), "error")
