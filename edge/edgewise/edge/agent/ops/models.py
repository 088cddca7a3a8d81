"""`model.pull`, `model.load`, `model.unload`, `model.remove`: each may be repeated, since it ends in a state, not with a step."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from edgewise.edge.agent.commands.operation import DAY_S, Args, Call, Operation, checked, parse
from edgewise.edge.twin.installer import Installer, load, unload
from edgewise.models.manifest import Role
from edgewise.pipeline.model import Models


class NameArgs(Args):
    name: str = Field(min_length=1, max_length=200)


class PullArgs(Args):
    """Attributes:
    name: Of a model or set of the catalog; with `source`, what to call it.
    source: `hf:OWNER/NAME` or `oci:HOST/REPO`.
    digest: It must be this model and no other.
    load: Load it then.
    """

    name: str | None = Field(default=None, min_length=1, max_length=200)
    source: str | None = Field(default=None, min_length=1, max_length=500)
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    role: Role = "llm"
    load: bool = False


def model_operations(models: Models, installer: Installer) -> tuple[Operation, ...]:
    async def pull(call: Call) -> dict[str, Any]:
        args = parse(PullArgs, call.args)
        pulled = await installer.pull(
            args.source or args.name, name=args.name, digest=args.digest, role=args.role, report=call.progress
        )
        if args.load:
            await call.progress("loading")
            for manifest in pulled:
                await load(models, manifest.name)
        return {"models": [{"name": one.name, "digest": one.digest, "bytes": one.size} for one in pulled]}

    async def load_one(call: Call) -> dict[str, Any]:
        args = parse(NameArgs, call.args)
        await call.progress("loading")
        await load(models, args.name)
        return {"name": args.name, "loaded": True}

    async def unload_one(call: Call) -> dict[str, Any]:
        args = parse(NameArgs, call.args)
        await unload(models, args.name)
        return {"name": args.name, "loaded": False}

    async def remove(call: Call) -> dict[str, Any]:
        args = parse(NameArgs, call.args)
        if await installer.find(args.name) is None and call.earlier is not None:
            return {"name": args.name, "freed_bytes": None}  # begun before a kill, and done
        await call.note({"begun": True})
        return {"name": args.name, "freed_bytes": await installer.remove(args.name)}

    def check_pull(args: Any) -> None:
        checked(PullArgs)(args)
        if args.get("name") is None and args.get("source") is None:
            checked(NameArgs)({})  # names the field

    def operation(name: str, check: Any, run: Any, total_s: float, step_s: float = 1800.0) -> Operation:
        return Operation(
            name=name, lane="update", check=check, run=run, repeatable=True, total_s=total_s, step_s=step_s
        )

    return (
        operation("model.pull", check_pull, pull, DAY_S),
        operation("model.load", checked(NameArgs), load_one, 3600.0),
        operation("model.unload", checked(NameArgs), unload_one, 600.0),
        operation("model.remove", checked(NameArgs), remove, 600.0),
    )
