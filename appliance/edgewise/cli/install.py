"""`edgewise install`: make this installation a systemd service."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.options import AsJson
from edgewise.cli.output import print_json, say
from edgewise.core.errors import NotPermitted
from edgewise.core.settings import load_settings

if TYPE_CHECKING:
    from edgewise.cli.install_plan import InstallPlan


def install(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be written and run; touch nothing.")
    ] = False,
    prefix: Annotated[Path | None, typer.Option(help="Write below this folder, for an image; run nothing.")] = None,
    user: Annotated[bool, typer.Option("--user", help="Install for you alone, without root.")] = False,
    cloud: Annotated[bool, typer.Option("--cloud", help="Install the cloud engine; a machine may have both.")] = False,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="Install the fleet service and the units of its broker.")
    ] = False,
    start: Annotated[bool, typer.Option("--now", help="Start the service at once.")] = False,
    executable: Annotated[
        Path | None, typer.Option("--exec", help="The `edgewise` to start; default: this one.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file whose drain_s sets TimeoutStopSec.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the systemd unit, its user, folders and an example configuration, and enable the service."""
    from edgewise.cli.install_plan import carry_out, plan_fleet, plan_system, plan_user, this_command

    if user and prefix:
        raise typer.BadParameter("--user installs into your home: it goes without --prefix")
    if user and (cloud or fleet):
        raise typer.BadParameter("--user installs a device service: the others are services of the whole machine")
    if cloud and fleet:
        raise typer.BadParameter("--cloud and --fleet are two installations: run it twice")
    command = (executable or this_command()).absolute()
    drain_s = load_settings(config).settings.drain_s
    if user:
        plan = plan_user(command, drain_s=drain_s, start=start)
    elif fleet:
        plan = plan_fleet(command, prefix=prefix and prefix.absolute(), start=start)
    else:
        plan = plan_system(command, drain_s=drain_s, prefix=prefix and prefix.absolute(), start=start, cloud=cloud)
    if not dry_run:
        _require_root(needed=not user and prefix is None)
        carry_out(plan)
    if as_json:
        print_json({"dry_run": dry_run, **_json(plan)})
    else:
        _print(plan, contents=dry_run)


def _require_root(*, needed: bool) -> None:
    if needed and os.geteuid() != 0:
        raise NotPermitted("installing for the whole machine needs root: use sudo, or --user, or look with --dry-run")


def _json(plan: InstallPlan) -> dict[str, object]:
    listed = [
        {**asdict(file), "path": str(file.path), "mode": f"{file.mode:04o}", "action": file.action}
        for file in plan.files
    ]
    return {**asdict(plan), "files": listed}


def _print(plan: InstallPlan, *, contents: bool) -> None:
    for file in plan.files:
        typer.echo(f"# {file.action} {file.path} (mode {file.mode:04o})")
        if contents and file.action in ("create", "replace"):
            typer.echo(file.content)
    for command in plan.commands:
        typer.echo(f"# run: {shlex.join(command)}")
    for problem in plan.problems:
        say(f"problem: {problem}")
    say("next:")
    for step in plan.next_steps:
        say(f"  {step}")
