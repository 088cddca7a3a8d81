"""`edgewise cloud`: run the cloud engine, and look at its keys, jobs and usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from edgewise.cli import keys
from edgewise.cli.options import ConfigFile
from edgewise.core.settings import load_settings

if TYPE_CHECKING:
    pass

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
