"""Certificates of servers that the fleet's own authority signed: renewed at two thirds of their life, and taken into use.

The broker reads its own again at a SIGHUP, which `edgewise-broker-reload.path` sends (mosquitto from 2.0 on). This service takes
its own into use by itself, whoever renewed it. Connections stay in both.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from edgewise.cloud.fleet.enrolment.authority import Authority
from edgewise.cloud.fleet.enrolment.broker_config import CERTIFICATE_FILE, FOLDER
from edgewise.core.errors import ConfigError, EdgewiseError
from edgewise.core.files import atomic_write, translate_os_errors
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.recurring import Guard, recur
from edgewise.core.settings_schema import Settings
from edgewise.security.tls import TlsFiles, check_tls

log = get_logger(__name__)

_RENEW_S, _LOOK_S = 3600.0, 30.0


def server_files(settings: Settings) -> list[Path]:
    """Certificates of the broker, where `edgewise fleet broker-config` puts it, and of this service."""
    broker = settings.home / FOLDER / CERTIFICATE_FILE
    return [broker] if settings.tls.cert is None else [broker, settings.tls.cert]


def renew_servers(authority: Authority, files: Sequence[Path]) -> list[Path]:
    """Renew those of these certificates that are due; which ones. What is not there, or of another authority, is left alone.

    Raises:
        StorageError: The disk refuses. ConfigError: A file holds no certificate.
    """
    renewed = []
    for path in files:
        if not path.exists():
            continue
        with translate_os_errors("read", path):
            pem = path.read_text("utf-8", errors="replace")
        try:
            new = authority.renewed(pem)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.message}") from error
        if new is not None:
            atomic_write(path, new)
            log.info("server_certificate_renewed", file=str(path))
            renewed.append(path)
    return renewed


class ServerCertificates:
    """One task that renews. Each file for itself: one that cannot be written keeps no other from its renewal."""

    def __init__(self, authority: Authority, files: Sequence[Path]) -> None:
        self._authority, self._files = authority, files
        self._guard = Guard()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        work = recur(self._turn, every_s=_RENEW_S, stuck="server_certificates_not_renewed")
        self._task = asyncio.create_task(work, name="fleet-server-certificates")

    async def stop(self) -> None:
        await end_task(self._task)

    async def _turn(self) -> None:
        for path in self._files:
            renew = partial(asyncio.to_thread, renew_servers, self._authority, [path])
            await self._guard.run(renew, stuck="server_certificate_not_renewed", file=str(path))


async def follow_tls(files: TlsFiles, context: Callable[[], ssl.SSLContext | None], *, look_s: float = _LOOK_S) -> None:
    """For ever: take this server's certificate into use when its files have changed. New connections see it, others stay.

    Files that cannot be used are looked at again when they change again; the certificate in use stays until then.

    Args:
        context: Of the server; None until it has begun.
    """
    seen = await asyncio.to_thread(_state, files)
    while True:
        await asyncio.sleep(look_s)
        now = await asyncio.to_thread(_state, files)
        server = context()
        if now == seen or server is None:
            continue
        seen = now
        try:
            await asyncio.to_thread(check_tls, files.cert, files.key)
            server.load_cert_chain(files.cert, files.key)
        except (EdgewiseError, OSError) as error:  # ssl.SSLError is an OSError
            log.error("certificate_not_reloaded", file=str(files.cert), reason=str(error))
        else:
            log.info("certificate_reloaded", file=str(files.cert))


def _state(files: TlsFiles) -> tuple[tuple[int, int] | None, ...]:
    """Changes when one of the files is written or replaced."""
    return tuple(map(_version, (files.cert, files.key)))


def _version(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # it is being replaced, or cannot be looked at: to be told when it changes again
        return None
    return found.st_mtime_ns, found.st_ino
