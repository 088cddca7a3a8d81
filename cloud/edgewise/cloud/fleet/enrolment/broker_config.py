"""Writes what mosquitto needs to be a fleet's broker: configuration, access list, certificate, passwords of the two services."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from edgewise.cloud.fleet.enrolment.authority import CERTIFICATE_FILE as CA_FILE
from edgewise.cloud.fleet.enrolment.authority import Authority
from edgewise.core.errors import ConfigError
from edgewise.core.files import atomic_write, make_folder, own_like_parent, read_secret

FOLDER, ACL_FILE, CERTIFICATE_FILE = "broker", "mosquitto.acl", "server.crt"
"""Where `edgewise fleet broker-config` writes in the state directory, and the access list and certificate there."""
USERS = ("fleet", "edgewise-cloud")
"""Of the services; devices have certificates instead."""
_ROUNDS = 1000  # mosquitto's default is 101; these passwords are 256 random bits, so it hardly matters


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Where what was written lies. `passwords`: file of each service's password, as `[mqtt] password_file` takes it."""

    conf: Path
    ca: Path
    passwords: dict[str, Path]


def write_broker_config(
    folder: Path,
    authority: Authority,
    hosts: Sequence[str],
    *,
    port: int = 8883,
    local_port: int = 1883,
    days: float = 800.0,
) -> BrokerConfig:
    """Write all of it into a folder, which the broker's user must own. Written again, it keeps the passwords and makes a new
    certificate.

    Args:
        hosts: Names and addresses by which devices reach the broker.
        port, local_port: Of the TLS listener for devices, and of the one on loopback for the services.
        days: Life of the broker's certificate.

    Raises:
        StorageError: The disk refuses. ConfigError: The folder's name cannot be written into the configuration.
    """
    if any(character.isspace() for character in str(folder)):
        raise ConfigError(f"{folder}: mosquitto takes no paths with spaces; choose another folder")
    for made in (folder, folder / "data"):
        make_folder(made, mode=0o750)
        own_like_parent(made)
    certificate, key = authority.server_certificate(hosts, days)
    atomic_write(folder / CERTIFICATE_FILE, certificate)
    atomic_write(folder / "server.key", key, mode=0o600)
    atomic_write(folder / ACL_FILE, access_list(), mode=0o600)
    passwords = {user: folder / f"{user}.password" for user in USERS}
    lines = [_entry(user, _password(path)) for user, path in passwords.items()]
    atomic_write(folder / "mosquitto.passwd", "".join(lines), mode=0o600)
    ca = authority.crl_file.parent / CA_FILE
    words: dict[str, object] = {
        "PORT": port,
        "LOCAL_PORT": local_port,
        "CA": ca,
        "CRL": authority.crl_file,
        "CERTIFICATE": folder / CERTIFICATE_FILE,
        "KEY": folder / "server.key",
        "PASSWORDS": folder / "mosquitto.passwd",
        "ACL": folder / ACL_FILE,
        "DATA": folder / "data",
    }
    text = _template("mosquitto.conf")
    for word, value in words.items():
        text = text.replace(f"@{word}@", str(value))
    conf = folder / "mosquitto.conf"
    atomic_write(conf, text)
    return BrokerConfig(conf=conf, ca=ca, passwords=passwords)


def access_list(shut_out: Sequence[str] = ()) -> str:
    """The access list. Devices that are `shut_out` may do nothing, though they may still be connected: a certificate that is
    revoked is refused at the next connection only."""
    rules = (f"\nuser {uid}\ntopic deny #\n" for uid in shut_out)
    return _template(ACL_FILE) + "".join(rules)


def shut_out(folder: Path, uids: Sequence[str]) -> bool:
    """Bring the access list of a broker's folder up to date, if there is one; whether it was changed. The broker reads it at its
    next reload (SIGHUP).

    Raises:
        StorageError: The disk refuses.
    """
    path, text = folder / ACL_FILE, access_list(uids)
    if not path.exists() or path.read_text("utf-8") == text:
        return False
    atomic_write(path, text, mode=0o600)
    return True


def _template(name: str) -> str:
    return (files("edgewise.cloud.fleet.enrolment") / "templates" / name).read_text("utf-8")


def _password(path: Path) -> str:
    """That of before, or a new one."""
    if not path.exists():
        atomic_write(path, f"{secrets.token_urlsafe(32)}\n", mode=0o600)
    return read_secret(path, path.name)


def _entry(user: str, password: str) -> str:
    """A line of mosquitto's password file: PBKDF2 with SHA-512, in the form `$7$rounds$salt$hash` (mosquitto_passwd(1))."""
    salt = secrets.token_bytes(12)
    hashed = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ROUNDS, 64)
    return f"{user}:$7${_ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(hashed).decode()}\n"
