"""`edgewise cloud`: run the cloud engine, and look at its keys, jobs and usage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from edgewise.cli import keys
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import date_text, print_json, print_table
from edgewise.core.clock import SystemClock
from edgewise.core.collector import lasting
from edgewise.core.errors import NotFound
from edgewise.core.settings import load_settings

if TYPE_CHECKING:
    from edgewise.cloud.jobs.table import JobTable

Result = TypeVar("Result")

app = typer.Typer(help="Run the cloud engine, which takes jobs from devices; and look at its keys, jobs and usage.")
app.add_typer(keys.app, name="keys")


@app.callback(invoke_without_command=True)
def cloud(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to load at start, by its name in the store.")] = None,
    executor: Annotated[str | None, typer.Option(help="Where jobs are worked off: local, ray or http.")] = None,
    upstream: Annotated[str | None, typer.Option(help="Base address of the server behind `--executor http`.")] = None,
    workers: Annotated[int | None, typer.Option(help="Jobs that are worked off at once.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16, int8 or fp8.")] = None,
    config: ConfigFile = None,
) -> None:
    """Run the cloud engine until Ctrl-C or SIGTERM; jobs under way are given back and go on after the next start."""
    if context.invoked_subcommand is not None:
        return
    with lasting():
        from edgewise.cloud.app import serve

    flags = {
        "intake.host": host,
        "intake.port": port,
        "model": model,
        "intake.executor": executor,
        "intake.upstream": upstream,
        "intake.workers": workers,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
    }
    raise typer.Exit(serve(load_settings(config, flags)))


@app.command()
def jobs(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Jobs shown, the latest first.")] = 20,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Jobs of all tenants in this state directory, the latest first; never what they hold."""
    from edgewise.cloud.intake.routes import show_job

    found = _ask(config, lambda table: table.latest(limit))
    if as_json:
        print_json([{"tenant": job.tenant, **show_job(job)} for job in found])
        return
    rows = [
        (job.id, job.tenant, job.model, job.priority.label, job.state, str(job.place), date_text(job.received_at))
        for job in found
    ]
    print_table(("JOB", "TENANT", "MODEL", "CLASS", "STATE", "AT", "RECEIVED"), rows)


@app.command()
def usage(
    days: Annotated[float, typer.Option(min=0, help="Of the last so many days.")] = 30.0,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """What ended jobs cost, by tenant and model."""
    since = SystemClock().time() - days * 86_400
    found = _ask(config, lambda table: table.bills(since, tenant))
    if as_json:
        print_json([asdict(bill) for bill in found])
        return
    rows = [
        (
            bill.tenant,
            bill.model,
            str(bill.jobs),
            str(bill.prompt_tokens),
            str(bill.completion_tokens),
            str(bill.steps),
            f"{bill.busy_s:.1f}",
            f"{bill.price:.4f}",
        )
        for bill in found
    ]
    print_table(("TENANT", "MODEL", "JOBS", "PROMPT", "ANSWER", "STEPS", "SECONDS", "PRICE"), rows)


def _ask(config: Path | None, question: Callable[[JobTable], Awaitable[Result]]) -> Result:
    """Ask the job table of this state directory, whether a cloud engine has it open or not."""
    from edgewise.cloud.jobs.schema import jobs_file, open_jobs
    from edgewise.cloud.jobs.table import JobTable

    path = jobs_file(load_settings(config).settings.home)
    if not path.exists():
        raise NotFound(f"There are no jobs: {path} does not exist. `edgewise cloud` makes it at its first start.")

    async def ask() -> Result:
        table = JobTable(open_jobs(path))
        try:
            return await question(table)
        finally:
            await table.close()

    return asyncio.run(ask())
