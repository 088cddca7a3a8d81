"""`edgewise cache`: what the KV cache's tiers hold, and making them forget it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, get_args
from urllib.parse import urlencode

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.cli.service_client import Key, Url, connect
from edgewise.core.errors import InvalidRequest
from edgewise.core.files import translate_os_errors
from edgewise.core.settings import load_settings
from edgewise.core.sizes import file_size
from edgewise.engine.api import CacheTier

app = typer.Typer(name="cache", help="Show and clear the KV cache in memory and on disk.", no_args_is_help=True)
TIERS: Final[tuple[str, ...]] = get_args(CacheTier)


@app.command()
def show(url: Url = None, key: Key = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Sizes and hit counters per tier of the running service; what lies on disk also without one."""
    running = _ask("get", "/edgewise/v1/cache", url, key, config)
    report = running or _offline(config)
    if as_json:
        print_json(report)
        return
    if report["models"]:
        print_table(("MODEL", "TIER", "PAGES", "SIZE", "HITS", "MISSES", "REFUSED"), list(rows(report)))
    if report["disk"]:
        stored = [(it["model"], it["numeric_class"], it["files"], file_size(it["size"])) for it in report["disk"]]
        print_table(("ON DISK", "NUMERIC CLASS", "FILES", "SIZE"), stored)
    if not report["models"] and not report["disk"]:
        say("No model is loaded, and nothing is on disk." if running else "No service answers, and nothing is on disk.")


@app.command()
def clear(
    tier: Annotated[str | None, typer.Option(help="device, host or disk; all of them if left out.")] = None,
    model: Annotated[str | None, typer.Option(help="One model; all of them if left out.")] = None,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Forget cached pages. Without a running service, what lies on disk is removed."""
    if tier not in (None, *TIERS):
        raise InvalidRequest(f"--tier {tier!r} is not one of {', '.join(TIERS)}.")
    query = urlencode({name: value for name, value in (("tier", tier), ("model", model)) if value is not None})
    report = _ask("delete", f"/edgewise/v1/cache?{query}".rstrip("?"), url, key, config)
    if report is None:
        report = {"pages": {}, **_clear_offline(tier, model, config)}
    if as_json:
        print_json(report)
        return
    pages = sum(count for tiers in report["pages"].values() for count in tiers.values())
    say(f"{pages} pages forgotten, {file_size(report['disk_bytes'])} on disk freed.")


def rows(report: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """One line per model and tier in use."""
    lines: list[tuple[object, ...]] = []
    for model in report["models"]:
        for name, tier in (model["tiers"] or {}).items():
            if name == "device":
                lines.append((model["model"], name, f"{tier['pages']} of {tier['pages_total']}", "", "", "", ""))
            elif any(tier.values()):
                state = " (off)" if tier.get("off") else ""
                size = file_size(tier["bytes"])
                refused = tier.get("refused", "")
                lines.append((model["model"], name + state, tier["pages"], size, tier["hits"], tier["misses"], refused))
    return lines


def _ask(method: str, path: str, url: str | None, key: str | None, config: Path | None) -> dict[str, Any] | None:
    """The service's answer; None if none runs here (one that was named must answer)."""
    from edgewise.cli.chat_client import NoService

    with connect(url, key, config) as client:
        try:
            answer: dict[str, Any] = client.get(path) if method == "get" else client.delete(path)
        except NoService:
            if url is not None:
                raise
            return None
    return answer


def _offline(config: Path | None) -> dict[str, Any]:
    from edgewise.engine.tiers import folder

    root = load_settings(config).settings.kv_cache_dir
    return {"models": [], "disk": [asdict(item) for item in folder.stored(root)]}


def _clear_offline(tier: str | None, model: str | None, config: Path | None) -> dict[str, int]:
    from edgewise.engine.tiers import folder

    root = load_settings(config).settings.kv_cache_dir
    if tier not in (None, "disk"):
        return {"disk_files": 0, "disk_bytes": 0}
    with translate_os_errors("clear", root):
        files, size = folder.clear(root, model)
    return {"disk_files": files, "disk_bytes": size}
