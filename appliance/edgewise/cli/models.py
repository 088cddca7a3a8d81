"""`edgewise models`: what is installed, what can be, and moving models in and out of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from edgewise.cli.exit_codes import ExitCode
from edgewise.cli.models_adapters import app as adapters_app
from edgewise.cli.models_encoders import encoders_command
from edgewise.cli.models_fit import fit_command
from edgewise.cli.models_gate import gate_command
from edgewise.cli.models_progress import progress_sink
from edgewise.cli.models_quantize import quantize_command
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.core.errors import BadModelFile, EngineUnavailable, InvalidRequest, ModelNotFound
from edgewise.core.settings import load_settings
from edgewise.core.sizes import file_size
from edgewise.models.catalog import SETS, Catalog, describe, load_catalog
from edgewise.models.intake import How
from edgewise.models.manifest import ROLES, Manifest, Role
from edgewise.models.progress import ProgressSink
from edgewise.models.references.resolve import installed_from, is_place, resolve_place
from edgewise.models.sources.access import SourceAccess, source_access
from edgewise.models.store import Store

app = typer.Typer(
    name="models",
    help="List, pull, show, verify, fit, gate, quantize, remove and import models, and what encoders were measured.",
    no_args_is_help=True,
)
app.add_typer(adapters_app)
app.command("fit")(fit_command)
app.command("gate")(gate_command)
app.command("quantize")(quantize_command)
app.command("encoders")(encoders_command)


@app.command("list")
def list_models(as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Installed models, and those that can be pulled."""
    store, catalog = _open(config)
    installed, damaged = store.manifests(), store.damaged()
    names = {manifest.name for manifest in installed}
    document = {
        "installed": [_installed(manifest) for manifest in installed],
        "damaged": [{"name": name, "reason": reason} for name, reason in damaged.items()],
        "available": [describe(entry) for entry in catalog.entries.values() if entry.name not in names],
        "sets": {name: list(members) for name, members in SETS.items()},
        "leftover_bytes": store.leftovers(),
    }
    if as_json:
        print_json(document)
    else:
        _print_list(document)


@app.command()
def pull(
    what: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A model or set of the catalog, or a place: hf:OWNER/NAME, oci:HOST/REPO."),
    ],
    name: Annotated[str | None, typer.Option("--name", help="What to call a model from a place.")] = None,
    role: Annotated[str, typer.Option("--role", help=f"What it is for: {', '.join(ROLES)}.")] = "llm",
    offline: Annotated[
        bool | None, typer.Option("--offline/--no-offline", help="Use no network; the setting `offline` if left out.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Fetch a model, or all models of a set such as `starter`. An interrupted pull continues where it stopped."""
    _one_of("--role", role, ROLES)
    if name is not None and not is_place(what):
        raise InvalidRequest(
            "--name is for models from a place (hf:..., oci:...): those of the catalog have their names."
        )
    store, catalog, access = _open_for_pull(config, offline)
    if not is_place(what) and (known := _installed_place(what, store, catalog)) is not None:
        what, name, role = known.source, known.name, known.info.role
    with _interruptible(), progress_sink(show=not as_json) as sink:
        if is_place(what):
            document = _pull_place(what, name, cast("Role", role), store, catalog, access, sink)
        else:
            entries = catalog.select(what)
            document = {"pulled": [_installed(store.pull(entry, sink)) for entry in entries]}
            document["notices"] = [f"{entry.name}: {entry.notice}" for entry in entries if entry.notice]
    if as_json:
        print_json(document)
        return
    _print_results(document["pulled"])
    for notice in document.get("notices", ()):
        say(notice)
    if document.get("checked") is False:
        say("It was here already; whether there is a newer one was not asked, because `offline` is on.")
    if left_out := document.get("left_out"):
        say(f"Left out, no part of the model: {', '.join(left_out)}")


def _installed_place(name: str, store: Store, catalog: Catalog) -> Manifest | None:
    """The installed model of that name if it came from a place: pulling it by name mends it, at the same commit or digest."""
    if name in catalog.entries or name in SETS:
        return None
    try:
        manifest = store.manifest(name)
    except (ModelNotFound, BadModelFile):
        return None  # the catalog's message tells then what can be pulled
    return manifest if is_place(manifest.source) else None


def _pull_place(
    what: str,
    name: str | None,
    role: Role,
    store: Store,
    catalog: Catalog,
    access: SourceAccess,
    sink: ProgressSink,
) -> dict[str, Any]:
    if access.offline:
        return {"pulled": [_installed(installed_from(what, store, name))], "left_out": [], "checked": False}
    resolved = resolve_place(what, access, catalog, name=name, role=role, progress=sink)
    pulled = store.pull(resolved.entry, sink)
    return {"pulled": [_installed(pulled)], "left_out": list(resolved.left_out), "checked": True}


@app.command()
def show(name: str, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Everything known about one model, installed or in the catalog."""
    store, catalog = _open(config)
    document = _describe_one(store, catalog, name)
    if document["installed"] and document.get("role") == "speech-to-text":
        document |= _encoder(config, store, name)
    if as_json:
        print_json(document)
    else:
        _print_one(document)


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="A model or set; all installed models if left out.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Hash every file again. Damaged files are put aside, and the next pull mends them; exit code 1 tells of any."""
    store, _ = _open(config)
    with _interruptible(), progress_sink(show=not as_json) as sink:
        reports = store.verify(None if name is None else list(SETS.get(name, (name,))), sink)
    sound = all(report.state == "ok" for report in reports)
    if as_json:
        print_json({"ok": sound, "files": [asdict(report) for report in reports]})
    elif reports:
        print_table(("state", "model", "file", ""), [(it.state, it.model, it.file, it.detail) for it in reports])
    else:
        say("No models are installed.")
    if not sound:
        raise typer.Exit(ExitCode.FAILURE)


@app.command("rm")
def remove(
    name: Annotated[str | None, typer.Argument(help="A model or set.")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Give up unfinished downloads and damaged files.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Remove a model, or all models of a set, and the files that no other model uses."""
    if (name is None) != partial:
        raise InvalidRequest("Give either the NAME of a model or --partial.")
    store, _ = _open(config)
    removed = store.clear_partial() if name is None else store.remove(name)
    if as_json:
        print_json(asdict(removed))
    else:
        say(f"{removed.name or 'Leftovers'} removed, {file_size(removed.freed)} freed.")


@app.command("import")
def import_model(
    path: Annotated[Path, typer.Argument(help="A .gguf file, or a folder with config.json and *.safetensors.")],
    name: Annotated[str | None, typer.Option("--name", help="What to call it; derived from PATH if left out.")] = None,
    role: Annotated[str, typer.Option("--role", help=f"What it is for: {', '.join(ROLES)}.")] = "llm",
    how: Annotated[str, typer.Option("--link", help="copy, reflink or hardlink.")] = "copy",
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Bring a model that lies on this machine into the store."""
    _one_of("--role", role, ROLES)
    _one_of("--link", how, ("copy", "reflink", "hardlink"))
    store, _ = _open(config)
    with _interruptible(), progress_sink(show=not as_json) as sink:
        done = store.import_path(path, name, role=cast("Role", role), how=cast("How", how), progress=sink)
    if as_json:
        print_json({"imported": _installed(done.manifest), "left_out": list(done.left_out)})
        return
    _print_results([_installed(done.manifest)])
    if done.left_out:
        say(f"Left out, no part of the model: {', '.join(done.left_out)}")


def _open(config: Path | None) -> tuple[Store, Catalog]:
    home = load_settings(config).settings.home
    catalog = load_catalog(home / "catalog.d")
    return Store(home / "models", catalog=lambda: catalog), catalog


def _open_for_pull(config: Path | None, offline: bool | None) -> tuple[Store, Catalog, SourceAccess]:
    settings = load_settings(config, {"offline": offline}).settings
    access = source_access(settings)
    catalog = load_catalog(settings.home / "catalog.d", access)
    store = Store(settings.home / "models", catalog=lambda: catalog, offline=settings.offline)
    return store, catalog, access


@contextmanager
def _interruptible() -> Iterator[None]:
    """Says on Ctrl-C what is kept: whole files, and parts of those that a server can continue."""
    try:
        yield
    except KeyboardInterrupt:
        say(
            "Interrupted. The store is as it was; the same command continues, a package that pip was fetching from its start."
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _installed(manifest: Manifest) -> dict[str, Any]:
    fields = manifest.as_dict()
    return {"size": manifest.size, **fields.pop("info"), **fields}


def _describe_one(store: Store, catalog: Catalog, name: str) -> dict[str, Any]:
    if name in SETS:
        installed = {manifest.name for manifest in store.manifests()}
        return {"name": name, "installed": installed.issuperset(SETS[name]), "members": list(SETS[name])}
    try:
        return {"installed": True, **_installed(store.manifest(name))}
    except ModelNotFound:
        return {"installed": False, **describe(catalog.find(name))}


def _encoder(config: Path | None, store: Store, name: str) -> dict[str, str]:
    """What computes the encoder of a model that hears."""
    # Here: for one role alone.
    from edgewise.engine.machine import look
    from edgewise.serving.ladders import hearing_ladder

    settings = load_settings(config).settings
    try:
        card = asyncio.run(look(settings.engine.device)).cuda
    except EngineUnavailable as error:  # the rest of what is known of the model does not depend on it
        return {"encoder": f"unknown: {error.message}", "encoder_remedy": "see `edgewise doctor`"}
    found = hearing_ladder(settings, store, store.manifest(name), card=card)
    return {"encoder": found.detail, "encoder_remedy": found.remedy}


def _print_list(document: Mapping[str, Any]) -> None:
    rows = [_row(it, state) for state in ("installed", "available") for it in document[state]]
    rows += [(it["name"], "damaged", "", "", "", "", "") for it in document["damaged"]]
    print_table(("name", "state", "role", "format", "size", "context", "licence"), rows)
    for name, members in document["sets"].items():
        say(f"`{name}` stands for {', '.join(members)}.")
    for it in document["damaged"]:
        say(f"{it['name']} is damaged: {it['reason']}")
    if leftover := document["leftover_bytes"]:
        say(f"{file_size(leftover)} of unfinished or damaged files; `edgewise models rm --partial` frees them.")


def _row(model: Mapping[str, Any], state: str) -> tuple[object, ...]:
    size, context = file_size(model["size"]), model["context"]
    return model["name"], state, model["role"], model["format"], size, context, model["licence_model"]


def _print_one(document: Mapping[str, Any]) -> None:
    plain = {key: value for key, value in document.items() if key != "files" and value not in (None, "")}
    rows = [(key, ", ".join(value) if isinstance(value, list) else value) for key, value in plain.items()]
    for file in document.get("files", []):
        rows += [("file", file["name"]), ("  bytes", file["size"]), ("  sha256", file["sha256"])]
    print_table(("field", "value"), rows)


def _print_results(models: list[dict[str, Any]]) -> None:
    print_table(("name", "size", "digest"), [(it["name"], file_size(it["size"]), it["digest"]) for it in models])


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequest(f"{option} {value!r} is not one of {', '.join(allowed)}.")
