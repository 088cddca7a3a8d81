"""`edgewise models quantize`: a model in 8 or 4 bits, calibrated on a text, beside the one that it is made from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from edgewise.cli.models_gate import gate_progress, read_text
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.core.errors import InvalidRequest
from edgewise.core.settings import load_settings
from edgewise.core.sizes import file_size
from edgewise.models.gate_record import PEERS
from edgewise.models.store import Store

if TYPE_CHECKING:
    from edgewise.engine.quality import Divergence

FORMATS = ("int8", "int4")
PARTS = ("qkv", "output", "gate_up", "down")


def quantize_command(
    name: Annotated[str, typer.Argument(help="A model in the store, in GGUF.")],
    to: Annotated[str, typer.Option("--to", help=f"{' or '.join(FORMATS)}.")],
    new_name: Annotated[
        str | None, typer.Option("--name", help="What to call it; NAME-int4 or -int8 if left out.")
    ] = None,
    wide: Annotated[
        list[str] | None, typer.Option(help=f"Keep these matrices in 8 bits: {', '.join(PARTS)}; repeatable.")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="UTF-8 text to calibrate on; Python's manual if left out.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the text to read.", min=128)] = 4096,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Round a model's weights to 8 or 4 bits by what a text makes of them, and measure on another what that costs."""
    from edgewise.cli.quantize_model import compare_models, quantize_model, quantized_size

    if to not in FORMATS:
        raise InvalidRequest(f"--to {to!r} is not one of {', '.join(FORMATS)}.")
    if unknown := [part for part in wide or () if part not in PARTS]:
        raise InvalidRequest(f"--wide {unknown[0]!r} is not one of {', '.join(PARTS)}.")
    store = Store(load_settings(config).settings.home / "models")
    content = None if text is None else read_text(text)
    parent = store.manifest(name)
    called = store.require_new(f"{name}-{to}" if new_name is None else new_name)
    into, parts = cast("Any", to), cast("Any", tuple(wide or ()))
    with store.workshop(quantized_size(store, name, into, parts)) as folder:
        out = folder / "model.gguf"
        with gate_progress(show=not as_json) as progress:
            bits = quantize_model(store, name, out, into, parts, content, tokens, progress)
        made = store.import_path(out, called, made_from=parent).manifest
    with gate_progress(show=not as_json) as progress:
        it = compare_models(store, name, called, into, tokens, progress)
    if as_json:
        models = {"made": made, "original": parent}
        document = {key: {"name": one.name, "size": one.size, "digest": one.digest} for key, one in models.items()}
        print_json({**document, "bits": bits, "positions": it.made.positions, "quality": asdict(it)})
        return
    peer = f"llama.cpp {PEERS[to]}"
    columns = ("", "KL", "LARGEST", "SAME TOKEN", "PERPLEXITY")
    exact = ("float32", "", "", "", f"{it.made.perplexity_float32:.4f}")
    print_table(columns, [exact, *(_row(label, one) for label, one in ((called, it.made), (peer, it.peer)))])
    say(f"{called} is in the store: {file_size(made.size)} of {file_size(parent.size)}, {bits:.2f} bits a weight.")


def _row(name: str, it: Divergence) -> tuple[object, ...]:
    return name, f"{it.mean_kl:.6f}", f"{it.max_kl:.4f}", f"{it.agreement:.2%}", f"{it.perplexity:.4f}"
