"""`edgewise serve`: run the device service in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from edgewise.cli.options import ConfigFile
from edgewise.core.collector import lasting
from edgewise.core.settings import load_settings


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to serve, by its name in the store.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16, int8 or fp8.")] = None,
    quantize: Annotated[str | None, typer.Option(help="auto, none, int8, int4 or fp8.")] = None,
    kernels: Annotated[str | None, typer.Option(help="auto, reference, native or triton.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(help="Devices that compute the model together.", min=1)] = None,
    config: ConfigFile = None,
) -> None:
    """Serve the API until Ctrl-C or SIGTERM; running requests are finished first."""
    with lasting():
        from edgewise.edge.app import serve as run

    flags = {
        "host": host,
        "port": port,
        "model": model,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "quantize": quantize,
        "engine.kernels": kernels,
        "engine.tensor_parallel": tensor_parallel,
    }
    raise typer.Exit(run(load_settings(config, flags)))
