"""`edgewise doctor`: is everything there that the service needs, and what to do if not."""

from __future__ import annotations

from dataclasses import asdict

import typer

from edgewise.cli.exit_codes import ExitCode
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, say
from edgewise.core.checks import Check

_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}


def doctor(
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, the configuration and every back end. Exit code 1 if a check fails."""
    from edgewise.cli.doctor_checks import run_checks

    checks = []
    for check in run_checks(config):
        checks.append(check)
        if not as_json:
            _print(check)
    failed = [check.name for check in checks if check.status == "fail"]
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    elif failed:
        say(f"\n{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
    raise typer.Exit(ExitCode.FAILURE if failed else ExitCode.OK)


def _print(check: Check) -> None:
    """Each line appears as soon as its check is done: torch takes seconds."""
    mark, colour = _MARKS[check.status]
    typer.echo(f"{typer.style(mark, fg=colour)}  {check.name:<13}  {check.detail}")
    if check.remedy:
        typer.echo(f"{'':21}{typer.style('->', fg=colour)} {check.remedy}")
