"""`ping`: the device answers, and says how long it has been up."""

from __future__ import annotations

from typing import Any

from edgewise.core.clock import Clock
from edgewise.edge.agent.commands.operation import Args, Call, Operation, checked


def ping(clock: Clock) -> Operation:
    began = clock.monotonic()

    async def run(call: Call) -> dict[str, Any]:
        del call
        return {"uptime_s": round(clock.monotonic() - began, 3)}

    return Operation(name="ping", lane="control", check=checked(Args), run=run, repeatable=True, total_s=60.0)
