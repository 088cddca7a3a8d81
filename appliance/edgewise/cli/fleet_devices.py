"""`edgewise fleet`: devices, groups, desired state and what happened."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from edgewise.cli.fleet_client import FleetToken, FleetUrl, connect
from edgewise.cli.fleet_keys import Label, labels_of
from edgewise.cli.options import AsJson
from edgewise.cli.output import date_text, print_json, print_table, say
from edgewise.core.errors import InvalidRequest

app = typer.Typer()
groups = typer.Typer(help="Saved queries.", no_args_is_help=True)
app.add_typer(groups, name="groups")

Uid = Annotated[str, typer.Argument(help="Name of the device (uid).")]
Query = Annotated[str, typer.Argument(help="Query over devices, as `site:lyon AND state:offline`; all without one.")]
Shadow = Annotated[str, typer.Argument(help="config, models, software or policy.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Lines shown.")]


@app.command()
def devices(
    query: Query = "",
    sort: Annotated[str, typer.Option(help="Field to sort by; with - in front, backwards.")] = "name",
    limit: Limit = 50,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Devices that match a query."""
    with connect(url, token) as client:
        page = client.get("devices", query=query, sort=sort, limit=limit)
    if as_json:
        print_json(page)
        return
    rows = [
        (
            device["uid"],
            device["name"],
            device["state"] + (f" ({device['state_reason']})" if device["state_reason"] else ""),
            date_text(device["seen_at"]),
            device["version"],
            " ".join(model["name"] for model in device["models"]),
            " ".join(f"{name}={value}" for name, value in device["labels"].items()),
        )
        for device in page["items"]
    ]
    print_table(("UID", "NAME", "STATE", "SEEN", "VERSION", "MODELS", "LABELS"), rows)
    if page["total"] > len(page["items"]):
        say(f"{len(page['items'])} of {page['total']}: raise --limit, or narrow the query.")


@app.command()
def device(uid: Uid, url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """One device: state, models, desired against reported, keys."""
    with connect(url, token) as client:
        found = client.get("devices", uid)
    if as_json:
        print_json(found)
        return
    for name in ("uid", "name", "state", "state_reason", "version", "notes"):
        if found[name]:
            typer.echo(f"{name:13} {found[name]}")
    typer.echo(f"{'seen':13} {date_text(found['seen_at'])}")
    for name, value in found["labels"].items():
        typer.echo(f"{'label':13} {name}={value}")
    for model in found["models"]:
        typer.echo(f"{'model':13} {model['name']} {model.get('state', '')}")
    for shadow in found["shadows"]:
        typer.echo(f"{shadow['shadow']:13} desired {shadow['gen']}, applied {shadow['applied']} {_state(shadow)}")
    for key in found["keys"]:
        typer.echo(f"{'key':13} {key['id']} {key['state']}, ends {date_text(key['expires_at'])}")


def _state(shadow: dict[str, Any]) -> str:
    return f"{shadow['state']} {shadow['reason']}".strip()


@app.command()
def edit(
    uid: Uid,
    name: Annotated[str | None, typer.Option(help="Name for people.")] = None,
    label: Label = None,
    unlabel: Annotated[list[str] | None, typer.Option(help="Label to take away; repeatable.")] = None,
    notes: Annotated[str | None, typer.Option(help="Free text.")] = None,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Change a device's name, labels or notes."""
    with connect(url, token) as client:
        body: dict[str, Any] = {"name": name, "notes": notes}
        if label or unlabel:
            kept = client.get("devices", uid)["labels"] | labels_of(label)
            body["labels"] = {key: value for key, value in kept.items() if key not in (unlabel or ())}
        found = client.patch("devices", uid, body={key: value for key, value in body.items() if value is not None})
    if as_json:
        print_json(found)
    else:
        say(f"{found['uid']}: {found['name']} " + " ".join(f"{key}={value}" for key, value in found["labels"].items()))


@app.command()
def retire(
    uid: Uid,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: FleetUrl = None,
    token: FleetToken = None,
) -> None:
    """Decommission a device: its keys are revoked, its history stays."""
    if not yes:
        typer.confirm(f"Revoke all keys of {uid} and take it out of the fleet?", abort=True)
    with connect(url, token) as client:
        client.delete("devices", uid)
    say(f"{uid} is retired.")


# --- desired state -----------------------------------------------------------------------------------------------------------


@app.command()
def shadow(uid: Uid, shadow: Shadow, url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """What is desired of a device, and what is in force."""
    with connect(url, token) as client:
        found = client.get("devices", uid, "shadows", shadow)
    if as_json:
        print_json(found)
        return
    say(f"desired {found['gen']} by {found['author'] or 'nobody'}; applied {found['applied']} {_state(found)}")
    print_json({"desired": found["desired"], "reported": found["reported"], "edits": found["edits"]})


@app.command()
def desire(
    uid: Uid,
    shadow: Shadow,
    document: Annotated[Path, typer.Argument(help="JSON file with the whole document; - reads standard input.")],
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Say what a device shall have: a new generation of the whole document."""
    with connect(url, token) as client:
        found = client.put("devices", uid, "shadows", shadow, body={"document": read_document(document)})
    if as_json:
        print_json(found)
    else:
        say(f"{uid}: {shadow} {found['gen']} is desired.")


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object of a file or standard input."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
        value = json.loads(text)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidRequest(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} holds no JSON object")
    return value


# --- groups and events ---------------------------------------------------------------------------------------------------------


@groups.command("list")
def list_groups(url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """All groups, with how many devices match now."""
    with connect(url, token) as client:
        found = client.get("groups")
    if as_json:
        print_json(found)
        return
    print_table(("ID", "NAME", "DEVICES", "QUERY"), [(g["id"], g["name"], g["count"], g["query"]) for g in found])


@groups.command("save")
def save_group(
    name: Annotated[str, typer.Argument(help="Of the group; one of this name is changed.")],
    query: Query,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Save a query under a name."""
    with connect(url, token) as client:
        found = client.put("groups", body={"name": name, "query": query})
    if as_json:
        print_json(found)
    else:
        say(f"{name}: {found['count']} devices match now.")


@groups.command("delete")
def delete_group(
    id: Annotated[str, typer.Argument(help="As `groups list` shows it.")],
    url: FleetUrl = None,
    token: FleetToken = None,
) -> None:
    """Forget a group; its devices stay as they are."""
    with connect(url, token) as client:
        client.delete("groups", id)


@app.command()
def events(
    device: Annotated[str | None, typer.Option(help="Of this device only.")] = None,
    limit: Limit = 50,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """What happened, the latest first."""
    with connect(url, token) as client:
        page = client.get("events", uid=device, limit=limit)
    if as_json:
        print_json(page)
        return
    rows = [(date_text(e["at"]), e["severity"], e["uid"] or "", e["kind"], e["message"]) for e in page["items"]]
    print_table(("AT", "SEVERITY", "DEVICE", "KIND", "MESSAGE"), rows)
