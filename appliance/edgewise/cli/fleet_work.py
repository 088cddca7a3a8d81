"""`edgewise fleet`: commands, rollouts and alerts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from edgewise.cli.exit_codes import ExitCode
from edgewise.cli.fleet_client import FleetClient, FleetToken, FleetUrl, connect
from edgewise.cli.fleet_devices import Limit, Shadow, Uid, read_document
from edgewise.cli.fleet_login import seconds_of
from edgewise.cli.jobs import text_of_answer
from edgewise.cli.options import AsJson
from edgewise.cli.output import date_text, print_json, print_table, say
from edgewise.core.errors import InvalidRequest, NotFound
from edgewise.wire.fleet import ENDED

app = typer.Typer()
rollouts = typer.Typer(help="Bring a document to many devices, stage by stage.", no_args_is_help=True)
alerts = typer.Typer(help="What needs somebody.", invoke_without_command=True)
rules = typer.Typer(help="When an alert is raised.", no_args_is_help=True)
app.add_typer(rollouts, name="rollouts")
app.add_typer(alerts, name="alerts")
app.add_typer(rules, name="rules")

Id = Annotated[str, typer.Argument(help="As the list shows it.")]
_MANY = 10


@app.command()
def send(
    op: Annotated[
        str, typer.Argument(help="ping, infer, model.pull, model.load, model.unload, restart, drain, diagnose, ...")
    ],
    to: Annotated[list[str] | None, typer.Option("--to", help="Device; repeatable.")] = None,
    query: Annotated[str | None, typer.Option(help="All devices that match, instead.")] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", help="name=value of the command; the value as JSON, else as text; repeatable."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: sent again, the same command is found.")] = None,
    ttl: Annotated[str | None, typer.Option(help="Time to its acceptance, e.g. 10m.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until all have ended; 1 if one has not succeeded.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a query's devices get it.")] = False,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Send a command to devices; those that are away get it when they come back, until it expires."""
    with connect(url, token) as client:
        uids = list(to) if to else _matching(client, query, yes)
        body = {"uids": uids, "op": op, "args": _arguments(arg), "key": key, "ttl_s": seconds_of(ttl, "--ttl")}
        sent = client.post("commands", body=body)
        if wait:
            sent = [_follow(client, command["id"], show=len(sent) == 1 and not as_json) for command in sent]
    if as_json:
        print_json(sent)
    else:
        _print_commands(sent)
    if wait and any(command["state"] != "succeeded" for command in sent):
        raise typer.Exit(ExitCode.FAILURE)


@app.command()
def commands(
    device: Annotated[str | None, typer.Option(help="To this device only.")] = None,
    state: Annotated[str | None, typer.Option(help="In this state only.")] = None,
    limit: Limit = 50,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Commands, the latest first."""
    with connect(url, token) as client:
        page = client.get("commands", uid=device, state=state, limit=limit)
    if as_json:
        print_json(page)
    else:
        _print_commands(page["items"])


@app.command()
def command(id: Id, url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """One command, with the steps of its life."""
    with connect(url, token) as client:
        found = client.get("commands", id)
    if as_json:
        print_json(found)
        return
    _print_commands([found])
    for step in found["steps"]:
        typer.echo(f"{date_text(step['at'])}  {step['state']}  {step['step']} {step['reason']}".rstrip())
    if found["result"] is not None:
        print_json(found["result"])


@app.command()
def cancel(id: Id, url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """Ask for the end of a command; its state says what really happened."""
    with connect(url, token) as client:
        found = client.post("commands", id, "cancel")
    if as_json:
        print_json(found)
    else:
        say(f"{found['id']}: {found['state']}")


@app.command()
def logs(
    uid: Uid,
    lines: Annotated[int, typer.Option(min=1, max=5000, help="How many of the latest.")] = 200,
    level: Annotated[str, typer.Option(help="debug, info, warning or error: these and what is worse.")] = "info",
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """The last lines of a device's own log."""
    with connect(url, token) as client:
        body = {"uids": [uid], "op": "logs", "args": {"lines": lines, "level": level}}
        (sent,) = client.post("commands", body=body)
        ended = _follow(client, sent["id"])
        found = client.get("commands", sent["id"], "log")["lines"]
    if as_json:
        print_json({"command": ended, "lines": found})
    else:
        for line in found:
            typer.echo(line)
    if ended["state"] != "succeeded":
        say(f"{ended['state']}: {ended['reason']}")
        raise typer.Exit(ExitCode.FAILURE)


def _matching(client: FleetClient, query: str | None, yes: bool) -> list[str]:
    """Exactly the devices that a command will touch, shown and agreed to."""
    if query is None:
        raise typer.BadParameter("say for which devices: --to or --query")
    uids: list[str] = client.get("devices", "uids", query=query)["uids"]
    if not uids:
        raise NotFound("no device matches")
    if not yes:
        shown = ", ".join(uids[:_MANY]) + (f" and {len(uids) - _MANY} more" if len(uids) > _MANY else "")
        typer.confirm(f"{len(uids)} devices: {shown}. Send it to them?", abort=True, err=True)
    return uids


def _arguments(given: list[str] | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{text!r}: write name=value", param_hint="--arg")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


def _follow(client: FleetClient, id: str, *, show: bool = False) -> Any:
    """Wait for the end of a command. With `show` an answer's text is printed as it comes, as far as none of it was missed; the
    rest comes from the result."""
    pieces, said = 0, ""
    for _, ack in client.events("commands", id, "stream"):
        if show and ack.get("text") and ack.get("offset") == pieces:
            typer.echo(ack["text"], nl=False)
            pieces, said = pieces + 1, said + ack["text"]
        if ack["state"] in ENDED:
            break
    command = client.get("commands", id)
    whole = text_of_answer(command["result"] or {}) if show else None
    if whole is not None and whole.startswith(said):
        typer.echo(whole[len(said) :])
    elif said:
        typer.echo()
    return command


def _print_commands(found: list[dict[str, Any]]) -> None:
    rows = [
        (c["id"], c["uid"], c["op"], c["state"], c["reason"] or c["step"], c["author"], date_text(c["changed_at"]))
        for c in found
    ]
    print_table(("ID", "DEVICE", "COMMAND", "STATE", "WHY", "BY", "AT"), rows)


# --- rollouts ------------------------------------------------------------------------------------------------------------------


@rollouts.command("list")
def list_rollouts(limit: Limit = 50, url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """Rollouts, the latest first."""
    with connect(url, token) as client:
        page = client.get("rollouts", limit=limit)
    if as_json:
        print_json(page)
        return
    rows = [
        (r["id"], r["name"], r["shadow"], r["state"], r["stage"] + 1, _counts(r), r["reason"]) for r in page["items"]
    ]
    print_table(("ID", "NAME", "SHADOW", "STATE", "STAGE", "DEVICES", "WHY"), rows)


@rollouts.command("show")
def show_rollout(id: Id, url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """One rollout with its devices."""
    with connect(url, token) as client:
        found = client.get("rollouts", id)
    if as_json:
        print_json(found)
        return
    say(f"{found['name']}: {found['state']}, stage {found['stage'] + 1}; {_counts(found)}. {found['reason']}")
    rows = [(d["uid"], d["stage"] + 1, d["state"], d["gen"], d["reason"]) for d in found["devices"]]
    print_table(("DEVICE", "STAGE", "STATE", "GEN", "WHY"), rows)


@rollouts.command("create")
def create_rollout(
    name: Annotated[str, typer.Argument(help="For people.")],
    shadow: Shadow,
    document: Annotated[Path, typer.Argument(help="JSON file with the document; - reads standard input.")],
    query: Annotated[str, typer.Option(help="Which devices.")],
    plan: Annotated[
        Path | None, typer.Option(help="JSON file with stages and criteria; default: 5, 25, 100 %.")
    ] = None,
    start: Annotated[bool, typer.Option("--start", help="Begin at once.")] = False,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Make a rollout of a desired document."""
    body = {
        "name": name,
        "shadow": shadow,
        "document": read_document(document),
        "query": query,
        "plan": {} if plan is None else read_document(plan),
        "start": start,
    }
    with connect(url, token) as client:
        found = client.post("rollouts", body=body)
    if as_json:
        print_json(found)
    else:
        say(f"{found['id']}: {found['state']}")


@rollouts.command("act")
def act(
    id: Id,
    what: Annotated[str, typer.Argument(help="start, approve, pause, resume, cancel or roll-back.")],
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Start, approve, pause, resume, cancel or roll back a rollout."""
    with connect(url, token) as client:
        found = client.post("rollouts", id, what)
    if as_json:
        print_json(found)
    else:
        say(f"{found['name']}: {found['state']}")


def _counts(rollout: dict[str, Any]) -> str:
    return ", ".join(f"{count} {state}" for state, count in rollout["counts"].items())


# --- alerts --------------------------------------------------------------------------------------------------------------------


@alerts.callback()
def list_alerts(
    context: typer.Context,
    all: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    device: Annotated[str | None, typer.Option(help="Of this device only.")] = None,
    limit: Limit = 100,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Open alerts, the latest first."""
    if context.invoked_subcommand is not None:
        return
    with connect(url, token) as client:
        page = client.get("alerts", open_only=not all, uid=device, limit=limit)
    if as_json:
        print_json(page)
        return
    rows = [
        (
            a["id"],
            a["severity"],
            a["uid"] or "",
            a["rule"],
            a["message"],
            date_text(a["raised_at"]),
            a["acknowledged_by"],
        )
        for a in page["items"]
    ]
    print_table(("ID", "SEVERITY", "DEVICE", "RULE", "MESSAGE", "SINCE", "SEEN BY"), rows)


@alerts.command("ack")
def acknowledge(id: Id, url: FleetUrl = None, token: FleetToken = None) -> None:
    """Say that you look after an alert."""
    with connect(url, token) as client:
        client.post("alerts", id, "acknowledge")


@rules.command("list")
def list_rules(url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """All rules."""
    with connect(url, token) as client:
        found = client.get("rules")
    if as_json:
        print_json(found)
        return
    rows = [
        (r["id"], r["name"], r["severity"], "on" if r["enabled"] else "off", r["query"], date_text(r["silenced_until"]))
        for r in found
    ]
    print_table(("ID", "NAME", "SEVERITY", "STATE", "QUERY", "SILENT UNTIL"), rows)


@rules.command("save")
def save_rule(
    rule: Annotated[
        Path, typer.Argument(help="JSON file with the rule, with `id` one that is there; - reads standard input.")
    ],
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Make or change a rule."""
    with connect(url, token) as client:
        found = client.put("rules", body=read_document(rule))
    if as_json:
        print_json(found)
    else:
        say(f"{found['id']}: {found['name']}")


@rules.command("delete")
def delete_rule(id: Id, url: FleetUrl = None, token: FleetToken = None) -> None:
    """Forget a rule."""
    with connect(url, token) as client:
        client.delete("rules", id)


@rules.command("silence")
def silence(
    id: Id,
    duration: Annotated[str, typer.Argument(help="For how long, e.g. 2h; 0s ends it.")],
    url: FleetUrl = None,
    token: FleetToken = None,
) -> None:
    """Deliver nothing of a rule for a while."""
    seconds = seconds_of(duration, "DURATION")
    if seconds is None:
        raise InvalidRequest("say for how long")
    with connect(url, token) as client:
        client.post("rules", id, "silence", body={"seconds": seconds})
