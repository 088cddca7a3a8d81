"""`edgewise models fit`: what a model needs and what fits here, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.exit_codes import ExitCode
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json
from edgewise.core.settings import load_settings
from edgewise.models.store import Store

if TYPE_CHECKING:
    from edgewise.engine.fit import FitReport


def report(name: str, config: Path | None, overrides: Mapping[str, object]) -> FitReport:
    """The engine's own sum for a model in the store, on the CPU's memory as it is now.

    Args:
        overrides: Settings by their dotted names; None leaves one as it is.
    """
    # Here: the layouts of models that see bring numpy along, which no other command needs.
    from edgewise.engine.fit import fit
    from edgewise.engine.ledger import available_memory
    from edgewise.engine.numerics import resolve
    from edgewise.kernels.limits import PAGE_TOKENS
    from edgewise.models.gate_record import read_record
    from edgewise.models.longtail.estimate import read_network

    settings = load_settings(config, overrides).settings
    store = Store(settings.home / "models")
    files = store.resolve(name)
    network, gate = read_network(files), read_record(store.root, files.digest)
    numerics = resolve(
        device="cpu",
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        quantize=settings.quantize,
        cuda=False,
        measured_kv=None if gate is None else gate.passed("kv"),
        failed_weights=() if gate is None else gate.failed("weights"),
        kernels=settings.engine.kernels,
        network=network,
        devices=settings.engine.devices,
    )
    return fit(
        network,
        numerics,
        available=available_memory(),
        memory_fraction=settings.engine.memory_fraction,
        kv_memory_bytes=settings.engine.kv_memory_bytes,
        max_context=settings.engine.max_context,
        max_running=settings.engine.max_running,
        max_step_tokens=settings.engine.max_step_tokens,
        page_tokens=PAGE_TOKENS,
        encoder_cache_bytes=settings.engine.encoder_cache_bytes,
        devices=settings.engine.devices,
    )


def fit_command(
    name: Annotated[str, typer.Argument(help="A model in the store.")],
    explain: Annotated[bool, typer.Option("--explain", help="Show the whole sum, line by line.")] = False,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16, int8 or fp8.")] = None,
    quantize: Annotated[str | None, typer.Option(help="auto, none, int8, int4 or fp8.")] = None,
    kernels: Annotated[str | None, typer.Option(help="auto, reference, native or triton.")] = None,
    devices: Annotated[
        int | None, typer.Option(help="Devices that compute it together (engine.tensor_parallel).", min=1)
    ] = None,
    context: Annotated[int | None, typer.Option(help="Largest prompt + answer wanted.", min=1)] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a model fits in memory, and why. Exit code 1 if it does not."""
    overrides = {
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "quantize": quantize,
        "engine.kernels": kernels,
        "engine.tensor_parallel": devices,
        "engine.max_context": context,
    }
    result = report(name, config, overrides)
    if as_json:
        print_json(asdict(result))
    else:
        lines = result.explain()
        typer.echo("\n".join(lines if explain else lines[-1:]))
    if not result.fits:
        raise typer.Exit(ExitCode.FAILURE)
