"""`edgewise bench fleet`: what a fleet service costs, and that it loses nothing, with so many devices."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edgewise.cli.exit_codes import ExitCode
from edgewise.cli.options import AsJson
from edgewise.cli.output import print_json, print_table
from edgewise.core.errors import EngineUnavailable, InvalidRequest
from edgewise.core.files import translate_os_errors
from edgewise.core.python import module_command


def fleet(
    devices: Annotated[int, typer.Option(min=1, max=20_000, help="Simulated devices.")] = 1000,
    period: Annotated[float, typer.Option(min=0.1, help="Seconds between two samples of each.")] = 10.0,
    steady: Annotated[float, typer.Option(min=1, help="Seconds of the quiet phase, in which cost is measured.")] = 60.0,
    rough: Annotated[float, typer.Option(min=0, help="Seconds in which links break and clones come.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of what breaks when.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start a fleet service with its broker, and so many devices: real MQTT clients whose engine is a fake.

    One in ten is slow, one in ten says everything twice, one in ten has a clock that is five years off. The exit code is 1 if
    anything was lost, done twice, or shown wrong.
    """
    from edgewise.bench.fleet.measure import FleetBench, FleetPlan, rows
    from edgewise.bench.machines import Machine, free_port
    from edgewise.wire.mqtt.connection import Broker

    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise InvalidRequest(f"--out {out} is not a file in a folder that exists.")
    plan = FleetPlan(devices=devices, period_s=period, steady_s=steady, rough_s=rough, seed=seed)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgewise-bench-fleet-")))
        password = _admin(home)
        port = free_port()
        settings = {"EDGEWISE_MQTT__HOST": "127.0.0.1", "EDGEWISE_MQTT__PORT": str(port)}
        machine = stack.enter_context(Machine(["fleet", "serve"], home, free_port(), settings))
        token = _login(machine.url, password)
        notify = stack.enter_context(_progress(show=not as_json))
        bench = FleetBench(
            plan,
            machine.url,
            token,
            Broker(host="127.0.0.1", port=port, uid="nobody"),
            home / "fleet.db",
            machine.pid,
            notify,
        )
        figures = asyncio.run(bench.run())
    result = {**asdict(plan), **asdict(figures), "faults": figures.faults}
    if out is not None:
        with translate_os_errors("write", out):
            out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    if as_json:
        print_json(result)
    else:
        print_table(("WHAT", "FIGURE"), list(rows(plan, figures)))
    if figures.faults:
        raise typer.Exit(ExitCode.FAILURE)


def _admin(home: Path) -> str:
    """Make the admin of a fleet that has no service yet; the password."""
    password = secrets.token_urlsafe(24)
    file = home / "password"
    file.write_text(password)
    file.chmod(0o600)
    add = ["fleet", "users", "add", "bench", "--role", "admin", "--local", "--password-file", str(file)]
    environment = {"EDGEWISE_HOME": str(home), "PATH": "/usr/bin:/bin"}
    command = [*module_command("edgewise.cli.main"), *add]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineUnavailable(f"The fleet's first user could not be made: {done.stderr.strip()}")
    return password


def _login(url: str, password: str) -> str:
    import httpx

    body = {"name": "bench", "password": password, "cookie": False}
    answer = httpx.post(f"{url}/fleet/v1/login", json=body, timeout=60, trust_env=False)
    if answer.is_error:
        raise EngineUnavailable(f"The fleet service does not let its admin in: {answer.text[:300]}")
    return str(answer.json()["token"])


@contextmanager
def _progress(*, show: bool) -> Iterator[Any]:
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not show or not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def notify(phase: str, done: int, whole: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=whole)
            bar.update(tasks[phase], completed=done)

        yield notify
