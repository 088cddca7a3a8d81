"""`edgewise fleet`: claim codes and keys of devices, the broker's configuration, certificates of servers."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from edgewise.cli.fleet_client import FleetToken, FleetUrl, connect
from edgewise.cli.fleet_login import seconds_of
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import date_text, print_json, print_table, say
from edgewise.core.settings import load_settings

app = typer.Typer()
codes = typer.Typer(help="Claim codes, with which devices enrol.", no_args_is_help=True)
keys = typer.Typer(help="Keys of devices: accept, refuse, revoke.", no_args_is_help=True)
app.add_typer(codes, name="codes")
app.add_typer(keys, name="keys")

Hosts = Annotated[list[str], typer.Option("--host", help="Name or address by which it is reached; repeatable.")]
Label = Annotated[list[str] | None, typer.Option("--label", help="name=value for the devices; repeatable.")]
Id = Annotated[str, typer.Argument(help="As `keys list` shows it.")]


@codes.command("list")
def list_codes(url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """Codes that can still be used; what they are is shown only once."""
    with connect(url, token) as client:
        found = client.get("codes")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            code["id"],
            code["uses"],
            "yes" if code["auto_accept"] else "no",
            code["uid"] or "",
            _labels(code["labels"]),
            code["author"],
            date_text(code["expires_at"]),
        )
        for code in found
    ]
    print_table(("ID", "USES LEFT", "ACCEPTS", "DEVICE", "LABELS", "BY", "EXPIRES"), rows)


@codes.command("new")
def new_code(
    expires_in: Annotated[str, typer.Option(help="Life, e.g. 1h or 7d; at most 30d.")] = "1h",
    uses: Annotated[int, typer.Option(min=1, max=10_000, help="Devices that may enrol with it.")] = 1,
    accept: Annotated[bool, typer.Option("--accept", help="Accept them at once, without an admin's look.")] = False,
    cloud: Annotated[bool, typer.Option("--cloud", help="Give them a key for the cloud engine too.")] = False,
    label: Label = None,
    device: Annotated[str | None, typer.Option(help="Give this device a new key in place of its lost one.")] = None,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Make a claim code and print it: this once, it cannot be shown again."""
    body = {
        "ttl_s": seconds_of(expires_in),
        "uses": uses,
        "auto_accept": accept,
        "labels": labels_of(label),
        "uid": device,
        "cloud": cloud,
    }
    with connect(url, token) as client:
        made = client.post("codes", body=body)
        pin = _pin_of(client.url)
    command = f"edgewise device enroll --fleet {client.url} --code {made['code']}" + (f" --pin {pin}" if pin else "")
    if as_json:
        print_json({**made, "command": command, "pin": pin})
        return
    say(f"Expires {date_text(made['expires_at'])}. On the device, as the user of its service:")
    say(f"  {command}")
    typer.echo(made["code"])


@codes.command("delete")
def delete_code(id: Id, url: FleetUrl = None, token: FleetToken = None) -> None:
    """No further device enrols with it."""
    with connect(url, token) as client:
        client.delete("codes", id)
    say(f"{id} is deleted.")


@keys.command("list")
def list_keys(
    device: Annotated[str | None, typer.Option(help="Of this device only.")] = None,
    state: Annotated[str | None, typer.Option(help="pending, active, replaced, revoked or refused.")] = None,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Keys of devices, the latest first."""
    with connect(url, token) as client:
        found = client.get("keys", uid=device, state=state)
    if as_json:
        print_json(found)
        return
    print_table(("ID", "DEVICE", "STATE", "NAME", "FINGERPRINT", "FROM", "SINCE", "ENDS"), [_row(key) for key in found])


def _row(key: dict[str, Any]) -> tuple[object, ...]:
    facts = key["facts"]
    return (
        key["id"],
        key["uid"],
        key["state"],
        facts.get("name", ""),
        key["fingerprint"][:16],
        facts.get("address", ""),
        date_text(key["changed_at"]),
        date_text(key["expires_at"]),
    )


def _decide(id: str, what: str, url: str | None, token: str | None, as_json: bool) -> None:
    with connect(url, token) as client:
        key = client.post("keys", id, what)
    if as_json:
        print_json(key)
    else:
        say(f"Key {key['id']} of {key['uid']}: {key['state']}.")


@keys.command()
def accept(id: Id, url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """Let a device in whose key waits. Compare its fingerprint with what `edgewise device enroll` shows there."""
    _decide(id, "accept", url, token, as_json)


@keys.command()
def refuse(id: Id, url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """Keep a device out whose key waits."""
    _decide(id, "refuse", url, token, as_json)


@keys.command()
def revoke(id: Id, url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """End a key: the broker refuses its device once it has read the list of revoked certificates again."""
    _decide(id, "revoke", url, token, as_json)


@app.command("broker-config")
def broker_config(
    host: Hosts,
    out: Annotated[Path | None, typer.Option(help="Folder; default: `broker` in the state directory.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="For devices, with TLS.")] = 8883,
    local_port: Annotated[
        int, typer.Option(min=1, max=65535, help="For the services of this machine, on loopback.")
    ] = 1883,
    days: Annotated[float, typer.Option(min=1, max=3650, help="Life of the broker's certificate.")] = 800.0,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Write mosquitto's configuration, access list, certificate and passwords; run it as the user of the fleet service."""
    from edgewise.cloud.fleet.enrolment.authority import Authority
    from edgewise.cloud.fleet.enrolment.broker_config import FOLDER, write_broker_config
    from edgewise.cloud.fleet.enrolment.service import authority_folder

    home = load_settings(config).settings.home
    folder = (out or home / FOLDER).absolute()
    written = write_broker_config(
        folder, Authority(authority_folder(home)), host, port=port, local_port=local_port, days=days
    )
    settings = {
        "mqtt.host": "127.0.0.1",
        "mqtt.port": local_port,
        "mqtt.password_file": str(written.passwords["fleet"]),
        "fleet.broker": "external",
        "fleet.broker_url": f"mqtts://{host[0]}:{port}",
    }
    if as_json:
        print_json({"conf": str(written.conf), "ca": str(written.ca), "settings": settings})
        return
    say(f"Start it with `mosquitto -c {written.conf}` (edgewise-broker.service does), and set for the fleet service:")
    for name, value in settings.items():
        typer.echo(f"{name} = {value!r}" if isinstance(value, int) else f'{name} = "{value}"')


@app.command("certificate")
def certificate(
    host: Hosts,
    out: Annotated[Path, typer.Option(help="Folder for server.crt and server.key.")],
    days: Annotated[float, typer.Option(min=1, max=3650, help="Life.")] = 800.0,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """A certificate of the fleet's own authority for a server, as this service (`tls.cert`, `tls.key`) or the cloud engine."""
    from edgewise.cloud.fleet.enrolment.authority import CERTIFICATE_FILE, Authority
    from edgewise.cloud.fleet.enrolment.service import authority_folder
    from edgewise.core.files import atomic_write

    folder = authority_folder(load_settings(config).settings.home)
    pem, key = Authority(folder).server_certificate(host, days)
    atomic_write(out / "server.crt", pem)
    atomic_write(out / "server.key", key, mode=0o600)
    told = {"tls.cert": str((out / "server.crt").absolute()), "tls.key": str((out / "server.key").absolute())}
    if as_json:
        print_json({**told, "ca": str(folder / CERTIFICATE_FILE)})
        return
    for name, value in told.items():
        typer.echo(f'{name} = "{value}"')
    say(f"Callers trust it by {folder / CERTIFICATE_FILE}.")


def labels_of(given: list[str] | None) -> dict[str, Any]:
    """`name=value` options as labels."""
    labels = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{text!r}: write name=value", param_hint="--label")
        labels[name] = value
    return labels


def _labels(labels: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in labels.items())


def _pin_of(url: str) -> str | None:
    """SHA-256 of the certificate that the service shows, which the client of the last request has verified; None without TLS."""
    import hashlib

    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname is None:
        return None
    pem = ssl.get_server_certificate((parts.hostname, parts.port or 443))
    return f"sha256:{hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()}"
