"""What sources on a network may do and with which credentials: the operator's settings, read once."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from edgewise.core.addresses import is_loopback
from edgewise.core.errors import BadModelFile, ConfigError, StorageError
from edgewise.core.settings import Settings
from edgewise.models.small_files import read_bytes
from edgewise.security.fetch import FetchPolicy, named_hosts

HUB: Final = "https://huggingface.co"
_MAX_SECRET_FILE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that no log, message or `repr` shows."""

    reveal: str = field(repr=False)

    def __str__(self) -> str:
        return "(secret)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAccess:
    """What a source needs besides the name of a model.

    Attributes:
        offline: Whether networks are off.
        hub_endpoint: Base URL of the hub, without a final slash.
        hub_token: Sent to the hub's own origin only.
        registries: Credentials "user:password" by registry ("host" or "host:port").
        private_hosts: Hosts that may lie at private addresses.
        http_hosts: Those of them that are spoken to without TLS.
        timeout_s: Longest silence, seconds.
        sleep: Waits between attempts (tests give their own).
    """

    offline: bool = False
    hub_endpoint: str = HUB
    hub_token: Secret | None = None
    registries: Mapping[str, Secret] = field(default_factory=dict)
    private_hosts: frozenset[str] = frozenset()
    http_hosts: frozenset[str] = frozenset()
    timeout_s: float = 30.0
    sleep: Callable[[float], None] = field(default=time.sleep, compare=False, repr=False)

    @property
    def policy(self) -> FetchPolicy:
        """What may be opened: public hosts over https, and what the operator has named."""
        return FetchPolicy(
            http_hosts=self.http_hosts, private_hosts=self.private_hosts | self.http_hosts, timeout_s=self.timeout_s
        )

    def may_carry_secrets(self, url: str) -> bool:
        """Whether a secret may go to `url`: encrypted, or not leaving this machine."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        return parts.scheme == "https" or host == "localhost" or is_loopback(host)

    def scheme(self, host: str) -> str:
        """How a registry is spoken to; `host` may have a port."""
        return "http" if (urlsplit(f"//{host}").hostname or "") in self.http_hosts else "https"


def source_access(settings: Settings, environ: Mapping[str, str] | None = None) -> SourceAccess:
    """The access that the settings give.

    Args:
        settings: Of this process.
        environ: Where HF_TOKEN may be; the process's environment by default.

    Raises:
        ConfigError: A file that they name cannot be read or is malformed.
    """
    sources = settings.sources
    endpoint = sources.hub_endpoint.rstrip("/")
    named = [*sources.local_hosts]
    if endpoint != HUB:  # an operator who names a mirror means it, wherever it lies
        parts = urlsplit(endpoint)
        named.append(f"http://{parts.hostname}" if parts.scheme == "http" else str(parts.hostname))
    private, plain = named_hosts(named)
    return SourceAccess(
        offline=settings.offline,
        hub_endpoint=endpoint,
        hub_token=_hub_token(sources.hub_token_file, os.environ if environ is None else environ),
        registries={} if sources.registry_auth_file is None else read_registry_auth(sources.registry_auth_file),
        private_hosts=private,
        http_hosts=plain,
    )


def _hub_token(path: Path | None, environ: Mapping[str, str]) -> Secret | None:
    where = "HF_TOKEN" if path is None else f"`sources.hub_token_file`: {path}"
    text = (
        environ.get("HF_TOKEN", "") if path is None else _secret_file(path, "sources.hub_token_file").decode("latin-1")
    )
    token = text.strip()
    if not token:
        if path is not None:
            raise ConfigError(f"{where} is empty: it must hold the token.")
        return None
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"{where} is no token: one line of printable ASCII without blanks is expected.")
    return Secret(token)


def read_registry_auth(path: Path) -> dict[str, Secret]:
    """Credentials of a Docker config.json: the object `auths`, registry -> {"auth": base64 of user:password}.

    Raises:
        ConfigError: It cannot be read or has another form; credential helpers are not run.
    """
    try:
        document = json.loads(_secret_file(path, "sources.registry_auth_file"))
        auths: Mapping[str, Any] = document.get("auths", {})
        found = {_registry(name): Secret(_decode(item["auth"])) for name, item in auths.items() if item.get("auth")}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"`sources.registry_auth_file`: {path} is no Docker config.json with `auths`.") from error
    if not found:
        raise ConfigError(
            f"`sources.registry_auth_file`: {path} holds no credentials itself (credential helpers are not run): "
            f"write them under `auths`."
        )
    return found


def _secret_file(path: Path, key: str) -> bytes:
    try:
        return read_bytes(path, str(path), most=_MAX_SECRET_FILE)
    except (StorageError, BadModelFile) as error:
        raise ConfigError(f"`{key}`: {error.message}") from error


def _registry(name: str) -> str:
    """Docker writes its own registry as https://index.docker.io/v1/, others as a host."""
    host = name.split("://", 1)[-1].split("/", 1)[0].lower()
    return "registry-1.docker.io" if host in {"index.docker.io", "docker.io"} else host


def _decode(text: str) -> str:
    return base64.b64decode(text, validate=True).decode("utf-8")
