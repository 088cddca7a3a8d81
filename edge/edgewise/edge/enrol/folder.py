"""What enrolment leaves in the state directory, in the folder `enrolment`, and which settings follow from it.

`device.pem` holds the private key and its certificate in one file, so that a power cut never leaves two that do not belong
together. The key was made here and has no copy anywhere.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgewise.core.errors import ConfigError
from edgewise.core.files import atomic_write, make_folder, own_like_parent, translate_os_errors
from edgewise.core.settings import LoadedSettings, with_fleet
from edgewise.core.settings_overlay import read_overlay
from edgewise.core.toml import parse_toml
from edgewise.wire.fleet import Enrolled

_HEAD = """\
# Written by `edgewise device enroll`; what the configuration file says wins over it. Delete the folder to leave the fleet.
"""


@dataclass(frozen=True, slots=True)
class Membership:
    """Which fleet this device is in, and the settings that the fleet told it."""

    fleet: str
    uid: str
    settings: dict[str, Any]


class EnrolmentFolder:
    """The folder below a state directory. Nothing is made before something is written."""

    def __init__(self, home: Path) -> None:
        self.path = home / "enrolment"
        self.file = self.path / "enrolment.toml"
        self.device = self.path / "device.pem"
        self.ca = self.path / "ca.crt"
        self._cloud_key = self.path / "cloud.key"

    def __repr__(self) -> str:
        return f"EnrolmentFolder({str(self.path)!r})"

    def read(self) -> Membership | None:
        """None: this device is in no fleet.

        Raises:
            ConfigError: The file is damaged; StorageError: It cannot be read.
        """
        if not self.file.exists():
            return None
        with translate_os_errors("read", self.file):
            text = self.file.read_text("utf-8")
        try:
            table = parse_toml(text)
            return Membership(str(table["fleet"]), str(table["uid"]), dict(table["settings"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.file} is damaged ({error}); enrol this device again with a new code") from error

    def key_for(self, code: str) -> ec.EllipticCurvePrivateKey:
        """The key that enrols with this code; made if there is none, and kept until that is over, so that a lost answer can be
        asked for again."""
        path = self.path / f"pending-{hashlib.sha256(code.encode()).hexdigest()[:16]}.key"
        if path.exists():
            with translate_os_errors("read", path):
                return load_key(path.read_bytes(), path)
        key = new_key()
        self._make()
        atomic_write(path, key_pem(key), mode=0o600)
        return key

    def forget_pending(self) -> None:
        """Delete keys of enrolments that are over."""
        for path in self.path.glob("pending-*.key"):
            path.unlink(missing_ok=True)

    def join(self, fleet: str, key: ec.EllipticCurvePrivateKey, answer: Enrolled) -> Membership:
        """Keep what an accepted enrolment has brought; `enrolment.toml`, which settings read, comes last."""
        assert answer.certificate is not None
        assert answer.ca is not None
        self._make()
        self.keep(key, answer.certificate, answer.ca)
        settings: dict[str, Any] = {"mqtt.uid": answer.uid}
        if answer.mqtt_host is not None:
            settings |= {"mqtt.host": answer.mqtt_host, "mqtt.port": answer.mqtt_port or 1883}
        if answer.mqtt_tls:
            files = {"ca_file": self.ca, "cert_file": self.device, "key_file": self.device}
            settings |= {f"mqtt.{name}": str(path) for name, path in files.items()}
        if answer.cloud_url is not None:
            settings["cloud.url"] = answer.cloud_url
        if answer.cloud_key is not None:
            atomic_write(self._cloud_key, f"{answer.cloud_key}\n", mode=0o600)
            settings["cloud.key_file"] = str(self._cloud_key)
        lines = [f"{_toml(name)} = {_toml(value)}" for name, value in settings.items()]
        head = f"{_HEAD}fleet = {_toml(fleet)}\nuid = {_toml(answer.uid)}\n\n[settings]\n"
        atomic_write(self.file, head + "\n".join(lines) + "\n")
        self.forget_pending()
        return Membership(fleet, answer.uid, settings)

    def keep(self, key: ec.EllipticCurvePrivateKey, certificate: str, ca: str) -> None:
        """A key with its certificate, in place of those before."""
        atomic_write(self.ca, ca)
        atomic_write(self.device, key_pem(key) + certificate, mode=0o600)

    def load(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        """The key in use and its certificate.

        Raises:
            ConfigError: The file is missing or damaged.
        """
        try:
            pem = self.device.read_bytes()
            return load_key(pem, self.device), x509.load_pem_x509_certificate(pem)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.device} cannot be used ({error}); enrol this device again with a new code"
            ) from error

    def _make(self) -> None:
        make_folder(self.path, mode=0o750)
        own_like_parent(self.path)


def with_enrolment(loaded: LoadedSettings) -> LoadedSettings:
    """The settings with what enrolment wrote, below everything that was set at the device.

    Raises:
        ConfigError: What it wrote is damaged or refused.
    """
    folder = EnrolmentFolder(loaded.settings.home)
    membership = folder.read()
    if membership is None:
        return loaded
    told = {key: (value, str(folder.file)) for key, value in membership.settings.items()}
    fleet = {} if loaded.fleet_fault is not None else read_overlay(loaded.settings.home).values
    merged = with_fleet(replace(loaded, given={**told, **loaded.given}), fleet)
    return replace(merged, fleet_fault=loaded.fleet_fault)


def _toml(value: str | int) -> str:
    """A text or number as TOML writes it, which for these is as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def load_key(pem: bytes, path: Path) -> ec.EllipticCurvePrivateKey:
    """Raises `ConfigError` if the file holds no EC key."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} holds no private key ({error}); delete it and enrol this device again") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} holds no EC key; delete it and enrol this device again")
    return key


def key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
