"""`model.trial`: a model is pulled and runs beside the one in use on recent inputs; only scores come out (docs/rollouts.md)."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from edgewise.api.deps import ApiDependencies
from edgewise.edge.agent.commands.operation import Args, Call, Operation, checked, parse
from edgewise.edge.twin.installer import Installer, unload
from edgewise.pipeline.trial import Meter, run_trial
from edgewise.wire.fleet import TrialArgs

_TOTAL_S, _STEP_S = 6 * 3600.0, 3600.0


class _Args(TrialArgs, Args):
    model_config = ConfigDict(frozen=True, extra="forbid")


def trial(deps: ApiDependencies, installer: Installer, meter: Meter) -> Operation:
    """Repeatable: it changes nothing but the store."""

    async def run(call: Call) -> dict[str, Any]:
        args = parse(_Args, call.args)
        await _fetch(call, args)
        before = {one.name for one in deps.models.status().models if one.state == "loaded"}
        try:
            scores = await run_trial(deps.models, args, deps.recent, meter=meter, progress=call.progress)
        finally:
            if args.candidate not in before:
                await unload(deps.models, args.candidate)
        return scores.model_dump(exclude_none=True)

    async def _fetch(call: Call, args: TrialArgs) -> None:
        held = await installer.find(args.candidate)
        if held is not None and args.digest in (None, held.digest):
            return
        await call.progress("pulling")
        await installer.pull(
            args.source or args.candidate, name=args.candidate, digest=args.digest, role="llm", report=call.progress
        )

    return Operation(
        name="model.trial",
        lane="update",
        check=checked(_Args),
        run=run,
        repeatable=True,
        total_s=_TOTAL_S,
        step_s=_STEP_S,
    )
