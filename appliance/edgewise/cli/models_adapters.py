"""`edgewise models adapters`: low-rank adapters of installed models, in and out of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgewise.cli.models_progress import progress_sink
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.core.errors import InvalidRequest
from edgewise.core.settings import load_settings
from edgewise.core.sizes import file_size
from edgewise.models.manifest import Manifest
from edgewise.models.store import Store

app = typer.Typer(name="adapters", help="Add, list and remove low-rank adapters (LoRA).", no_args_is_help=True)


@app.command("add")
def add(
    path: Annotated[Path, typer.Argument(help="A folder that PEFT's save_pretrained wrote.")],
    base: Annotated[str, typer.Option("--base", help="The installed model that it adapts.")],
    name: Annotated[str | None, typer.Option("--name", help="What to call it; the folder's name if left out.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Bring an adapter that lies on this machine into the store. A running service has it with the next request."""
    store = _open(config)
    from edgewise.models.adapters.inspecting import inspect_adapter  # brings numpy, which few commands need

    candidate = inspect_adapter(path, name, store.resolve(base))
    with progress_sink(show=not as_json) as sink:
        done = store.install(candidate, path, progress=sink)
    if as_json:
        print_json({"added": _shown(done.manifest), "left_out": list(done.left_out)})
        return
    _print([done.manifest])


@app.command("list")
def list_adapters(as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Installed adapters and their models."""
    found = [manifest for manifest in _open(config).manifests() if manifest.info.role == "adapter"]
    if as_json:
        print_json({"adapters": [_shown(manifest) for manifest in found]})
    else:
        _print(found)


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="The adapter.")], as_json: AsJson = False, config: ConfigFile = None
) -> None:
    """Remove an adapter. Its model stays."""
    store = _open(config)
    if store.manifest(name).info.role != "adapter":
        raise InvalidRequest(f"'{name}' is no adapter: `edgewise models rm {name}` removes a model.")
    removed = store.remove(name)
    if as_json:
        print_json({"name": removed.name, "freed": removed.freed})
    else:
        say(f"{removed.name} removed, {file_size(removed.freed)} freed.")


def _open(config: Path | None) -> Store:
    return Store(load_settings(config).settings.home / "models")


def _shown(manifest: Manifest) -> dict[str, object]:
    return {
        "name": manifest.name,
        "base": manifest.info.base,
        "size": manifest.size,
        "digest": manifest.digest,
        "source": manifest.source,
    }


def _print(manifests: list[Manifest]) -> None:
    rows = [(it.name, it.info.base, file_size(it.size), it.digest) for it in manifests]
    print_table(("name", "base", "size", "digest"), rows)
