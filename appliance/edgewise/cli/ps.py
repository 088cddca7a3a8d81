"""`edgewise ps`, `edgewise load`, `edgewise stop`: which models the running service has loaded, and changing that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.cli.service_client import Key, Url, connect
from edgewise.core.sizes import mib

Name = Annotated[str, typer.Argument(help="A model in the store.")]


def ps(url: Url = None, key: Key = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show which models are loaded, how much memory they may book, who uses them, and until when they stay."""
    with connect(url, key, config) as client:
        report = client.get("/edgewise/v1/models")
    if as_json:
        print_json(report)
        return
    rows = [row(model) for model in report["models"]]
    print_table(("MODEL", "STATE", "MEMORY", "ACTIVE", "WAITING", "UNTIL", "PID"), rows)
    if report["budget_bytes"] is not None:
        say(f"{mib(report['granted_bytes'])} of the budget of {mib(report['budget_bytes'])} are given out.")


def load(name: Name, url: Url = None, key: Key = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Load a model now, so that its first request need not wait."""
    _change(name, "load", url, key, config, as_json=as_json)


def stop(name: Name, url: Url = None, key: Key = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Unload a model as soon as it is idle."""
    _change(name, "unload", url, key, config, as_json=as_json)


def _change(name: str, what: str, url: str | None, key: str | None, config: Path | None, *, as_json: bool) -> None:
    """Ask for it and say in which state the model is then; as JSON, what `ps` reports."""
    with connect(url, key, config) as client:
        report = client.post(f"/edgewise/v1/models/{quote(name, safe='')}/{what}")
    if as_json:
        print_json(report)
        return
    for model in report["models"]:
        if model["name"] == name:
            say(f"{name}: {model['state']}, {model['active'] + model['waiting']} requests")


def row(model: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    size = mib(model["memory_bytes"]) if model["memory_bytes"] else ""
    pid = "" if model["pid"] is None else str(model["pid"])
    return model["name"], model["state"], size, str(model["active"]), str(model["waiting"]), until(model), pid


def until(model: Mapping[str, Any]) -> str:
    """When it is unloaded, in words."""
    if model["pinned"]:
        return "pinned"
    if model["state"] != "loaded":
        return ""
    if model["active"] or model["waiting"]:
        return "in use"
    seconds = model["expires_s"]
    if seconds is None:
        return "for ever"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
