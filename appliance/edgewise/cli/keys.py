"""`edgewise keys`: make, list and revoke API keys."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import date_text, print_json, print_table, say
from edgewise.core.clock import parse_duration
from edgewise.core.settings import load_settings

if TYPE_CHECKING:
    from edgewise.security.keys import KeyRecord, KeyStore

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)


@app.command("create", hidden=True)
@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Who will use it.")],
    scope: Annotated[list[str] | None, typer.Option(help="inference (default), metrics or admin; repeatable.")] = None,
    priority: Annotated[
        str,
        typer.Option(
            help="Deadline class of its requests: realtime, interactive, background or bulk; also their ceiling."
        ),
    ] = "interactive",
    privacy: Annotated[
        str | None,
        typer.Option(
            help="Label of its requests, which they may only make stricter: private (stays on this device), site or any; "
            "default: placement.privacy."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="On a cloud: bind it to the device of this name (mqtt.uid), which is then the same tenant over HTTP and MQTT."
        ),
    ] = None,
    expires_in: Annotated[str | None, typer.Option(help="Life, e.g. 90d or 12h; default: for ever.")] = None,
    expires_at: Annotated[datetime | None, typer.Option(help="Date of expiry (UTC).", formats=["%Y-%m-%d"])] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it: this once, it cannot be shown again."""
    moment = expires_at.replace(tzinfo=timezone.utc).timestamp() if expires_at else None
    with _store(config) as store:
        record, token = store.create(
            name,
            scope or ["inference"],
            expires_at=moment,
            ttl_s=_seconds(expires_in),
            priority=priority,
            privacy=privacy,
            device=device,
        )
    if as_json:
        print_json({**_json(record), "key": token})
        return
    may = f"{', '.join(sorted(record.scopes))}; {record.priority}" + (f"; {record.privacy}" if record.privacy else "")
    until = f"expires {date_text(record.expires_at)}" if record.expires_at else "never expires"
    say(f"Key `{record.name}` ({may}), {until}. Keep it: it cannot be shown again.")
    typer.echo(token)


@app.command("list")
def list_keys(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List all keys, also expired and revoked ones."""
    from edgewise.core.clock import SystemClock

    with _store(config) as store:
        records = store.list()
    if as_json:
        print_json([_json(record) for record in records])
        return
    now = SystemClock().time()
    rows = [
        (
            r.id,
            r.name,
            " ".join(sorted(r.scopes)),
            r.state(now),
            r.priority,
            r.privacy or "default",
            r.device or "any",
            date_text(r.created_at),
            date_text(r.expires_at) or "never",
        )
        for r in records
    ]
    print_table(("ID", "NAME", "SCOPES", "STATE", "CLASS", "PRIVACY", "DEVICE", "CREATED", "EXPIRES"), rows)


@app.command("revoke")
def revoke(
    key: Annotated[str, typer.Argument(help="Id or name.")], config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """End a key at once; a running service refuses it from the next request on."""
    with _store(config) as store:
        record = store.revoke(key)
    if as_json:
        print_json(_json(record))
    else:
        say(f"Key `{record.name}` ({record.id}) is revoked.")


def _store(config: Path | None) -> KeyStore:
    from edgewise.security.keys import KeyStore

    return KeyStore(load_settings(config).settings.keys_file)


def _seconds(duration: str | None) -> float | None:
    try:
        return None if duration is None else parse_duration(duration)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires-in") from error


def _json(record: KeyRecord) -> dict[str, Any]:
    return {**asdict(record), "scopes": sorted(record.scopes)}
