"""`restart` and `drain`: of the service. A restart is done when the service has come back and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic import Field

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.edge.agent.commands.operation import Args, Call, Operation, checked, parse
from edgewise.edge.agent.proof import wait_answered

log = get_logger(__name__)

RESTART_CODE = 75
"""Exit code after which systemd starts the service again (Restart=on-failure; EX_TEMPFAIL of sysexits.h)."""
_EXPECTED_S = 60.0

EndsWith = Callable[[str, float | None], None]


class RestartArgs(Args):
    """Attributes:
    reason: What people are told meanwhile.
    expected_s: For how long the device will be away, as far as is known.
    """

    reason: str = Field(default="restart", max_length=200)
    expected_s: float = Field(default=_EXPECTED_S, ge=0, le=86_400)


class DrainArgs(Args):
    """Attributes:
    limit_s: Seconds after which requests that still run are no longer waited for; they go on.
    """

    limit_s: float = Field(default=60.0, ge=0, le=3600)


class CannotRestart(EdgewiseError):
    """Nobody would start the service again."""

    code = "cannot_restart"


def restart(deps: ApiDependencies, *, boot: str, started: str, ends: EndsWith) -> Operation:
    """Args:
    boot, started: Ids of this boot and of this start of the service.
    ends: Told why the service ends and for how long; it is said at the end.
    """

    async def run(call: Call) -> dict[str, Any]:
        args = parse(RestartArgs, call.args)
        if deps.end_service is None:
            raise CannotRestart("This service cannot end itself.")
        await call.note({"boot": boot, "started": started})
        await call.progress("ending the service")
        ends(args.reason, args.expected_s)
        log.info("restarting", reason=args.reason)
        deps.end_service(RESTART_CODE)
        await asyncio.Event().wait()  # until the end of the service ends this; the next start goes on with `resume`
        return {}

    async def resume(call: Call) -> dict[str, Any]:
        await call.progress("waiting for an answer")
        proof = await wait_answered(deps)
        return {"boot": boot, "started": started, "before": dict(call.earlier or {}), **proof}

    return Operation(
        name="restart", lane="control", check=checked(RestartArgs), run=run, resume=resume, total_s=1800, step_s=1800
    )


def drain(deps: ApiDependencies) -> Operation:
    """Refuses new work until the next start. Not repeatable: after a start nothing drains."""

    async def run(call: Call) -> dict[str, Any]:
        args = parse(DrainArgs, call.args)
        deps.requests.begin_drain()
        deps.events.emit("draining", "The fleet has told the service to take no new work.")
        idle = await deps.requests.wait_idle(args.limit_s)
        return {"idle": idle, "open": deps.requests.open}

    return Operation(name="drain", lane="control", check=checked(DrainArgs), run=run, total_s=3700, step_s=3700)
