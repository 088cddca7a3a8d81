"""`edgewise device`: make this device one of a fleet, and see what it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import date_text, print_json, say
from edgewise.core.errors import NotFound
from edgewise.core.settings import load_settings

if TYPE_CHECKING:
    from edgewise.wire.fleet import Enrolled

app = typer.Typer(help="Make this device one of a fleet, and see what it is.", no_args_is_help=True)


@app.command("enrol", hidden=True)
@app.command("enroll")
def enroll(
    fleet: Annotated[str, typer.Option(help="Address of the fleet service.")],
    code: Annotated[str, typer.Option(help="Claim code: `edgewise fleet codes new` there.")],
    name: Annotated[str, typer.Option(help="Name for people; default: this host's.")] = "",
    ca: Annotated[
        Path | None, typer.Option(help="PEM file of the authority of its certificate, if the system does not know it.")
    ] = None,
    pin: Annotated[str | None, typer.Option(help="SHA-256 of its certificate, instead of an authority.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Though it is in a fleet: a new key, or another fleet.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until an admin has accepted this device.")] = True,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Enrol this device. Its key is made here and never leaves it. Interrupted, the same command goes on."""
    from edgewise.edge.enrol.enrolment import enrol

    home = load_settings(config).settings.home
    told: list[Enrolled] = []

    def tell(answer: Enrolled, fingerprint: str) -> None:
        if not told:
            say(f"This device is {answer.uid}, its key {fingerprint[:16]}... An admin of the fleet must accept it:")
            say("  edgewise fleet keys list --state pending")
        told.append(answer)

    membership = asyncio.run(
        enrol(home, fleet, code, name=name, ca_file=ca, pin=pin, again=again, wait=wait, tell=tell)
    )
    if as_json:
        print_json({"fleet": membership.fleet, "uid": membership.uid, "settings": membership.settings})
        return
    say(f"This device is {membership.uid} of {membership.fleet}.")
    say("It connects when its service is started again: sudo systemctl restart edgewise-device")


@app.command()
def status(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Which fleet this device is in, and its certificate; exit code 5 if it is in none."""
    from edgewise.edge.enrol.client import fingerprint_of
    from edgewise.edge.enrol.folder import EnrolmentFolder, with_enrolment

    loaded = load_settings(config)
    folder = EnrolmentFolder(loaded.settings.home)
    membership = folder.read()
    if membership is None:
        raise NotFound("this device is in no fleet; `edgewise device enroll --fleet URL --code CODE` enrols it")
    key, certificate = folder.load()
    mqtt = with_enrolment(loaded).settings.mqtt
    report: dict[str, Any] = {
        "fleet": membership.fleet,
        "uid": membership.uid,
        "broker": None if mqtt.host is None else f"{'mqtts' if mqtt.ca_file else 'mqtt'}://{mqtt.host}:{mqtt.port}",
        "fingerprint": fingerprint_of(key),
        "not_before": certificate.not_valid_before_utc.timestamp(),
        "not_after": certificate.not_valid_after_utc.timestamp(),
    }
    if as_json:
        print_json(report)
        return
    for name in ("fleet", "uid", "broker", "fingerprint"):
        typer.echo(f"{name:12} {report[name]}")
    typer.echo(f"{'certificate':12} {date_text(report['not_before'])} to {date_text(report['not_after'])}")
