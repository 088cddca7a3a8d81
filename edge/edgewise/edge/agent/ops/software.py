"""`software`: refused. Software is accepted with signed metadata only, and this release reads none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.edge.agent.commands.operation import Call, Operation, Unsigned

REASON = "Software is accepted with signed metadata only, which this release does not read: update it with the system's packages."


def software() -> Operation:
    def check(args: Mapping[str, Any]) -> None:
        del args
        raise Unsigned(REASON)

    async def run(call: Call) -> dict[str, Any]:
        del call
        raise Unsigned(REASON)

    return Operation(name="software", lane="update", check=check, run=run)
