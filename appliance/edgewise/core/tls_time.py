"""TLS on a machine whose clock may be years off: dates of certificates are checked against what is known to have passed.

A device without a clock battery starts in 1970, one with a wrong one may live in 2031. OpenSSL's own check of dates would lock
both out for good. So it is switched off (X509_V_FLAG_NO_CHECK_TIME) and ours takes its place in every handshake: a peer's
certificate must not have ended before the floor, the latest moment that this machine knows to have passed. That is the date
before which this software did not exist, or the last time that a trusted source told, which is kept on disk. Where the
operating system says that its clock was set by a time server, the clock counts as usual. Everything else about certificates
(signatures, names, purposes, revocation) is checked as ever.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgewise.core.clock import EARLIEST_PLAUSIBLE
from edgewise.core.errors import ConfigError, StorageError
from edgewise.core.files import atomic_write
from edgewise.core.log import get_logger

log = get_logger(__name__)

FILE = "time-floor"
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL's x509_vfy.h
_WRITE_EVERY_S = 6 * 3600.0
_SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")


def clock_is_set() -> bool:
    """Whether systemd-timesyncd has set the clock by a time server since boot."""
    return _SYNCHRONIZED.exists()


class TimeFloor:
    """The latest moment (seconds since 1970) that is known to have passed; safe to use from several threads.

    Args:
        path: Where it is kept; None keeps it in memory.
        trusted: Whether the machine's clock may be believed now.
    """

    def __init__(self, path: Path | None = None, *, trusted: Callable[[], bool] = clock_is_set) -> None:
        self._path = path
        self._trusted = trusted
        self._stored = _read(path)
        self._value = max(self._stored, EARLIEST_PLAUSIBLE.timestamp())

    @property
    def value(self) -> float:
        return self._value

    def saw(self, moment: float) -> None:
        """A trusted source says that it is this moment. Written to disk when it has moved on by hours."""
        if moment <= self._value:
            return
        self._value = moment
        if self._path is not None and moment - self._stored >= _WRITE_EVERY_S:
            self._stored = max(moment, _read(self._path))  # others of this file may know of a later one
            self._value = self._stored
            if self._stored > moment:
                return
            try:
                atomic_write(self._path, f"{moment:.0f}\n", mode=0o600)
            except StorageError as error:  # no reason to refuse a connection
                log.warning("time_floor_not_kept", reason=error.message)

    def saw_peer(self, moment: float, certificate: Mapping[str, Any]) -> None:
        """A peer whose certificate (as `getpeercert` gives it) was verified says so; a time at which that would not be valid
        is not believed, so that one wrong clock elsewhere cannot end every certificate here."""
        begin, end = _validity(certificate)
        if begin <= moment < end:
            self.saw(moment)

    def check(self, certificate: Mapping[str, Any]) -> None:
        """Whether a verified peer's certificate may be in force now.

        Raises:
            ssl.SSLCertVerificationError: It has ended, or the clock can be trusted and it has not begun.
        """
        begin, end = _validity(certificate)
        now = time.time() if self._trusted() else None
        if now is not None:
            self.saw(now)
            if now < begin:
                raise _refused(f"it is not valid before {_date(begin)}")
        if end <= self._value:
            raise _refused(f"it ended on {_date(end)}, and it is {_date(self._value)} at least")


def client_context(
    floor: TimeFloor,
    *,
    ca_file: Path | None = None,
    system: bool = True,
    cert_file: Path | None = None,
    key_file: Path | None = None,
) -> ssl.SSLContext:
    """A context for clients (httpx, asyncio, sockets) that checks dates against `floor`.

    Args:
        ca_file: PEM of an authority of one's own.
        system: Whether the system's authorities are trusted too.
        cert_file, key_file: The client's own certificate and key, PEM.

    Raises:
        ConfigError: A file is missing or cannot be used.
    """
    context = ssl.create_default_context() if system else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca_file is not None:
            context.load_verify_locations(ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"A certificate or key cannot be used: {ca_file or ''} {cert_file or ''}: {error}") from error
    context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)

    class CheckedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            floor.check(self.getpeercert() or {})

    class CheckedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            floor.check(self.getpeercert() or {})

    context.sslsocket_class = CheckedSocket
    context.sslobject_class = CheckedObject
    return context


def _read(path: Path | None) -> float:
    """0 where there is none, or none that can be read: the floor only falls back to the earliest date."""
    try:
        return 0.0 if path is None else float(path.read_text("ascii").strip())
    except (OSError, ValueError):
        return 0.0


def _validity(certificate: Mapping[str, Any]) -> tuple[float, float]:
    return (
        float(ssl.cert_time_to_seconds(certificate["notBefore"])),
        float(ssl.cert_time_to_seconds(certificate["notAfter"])),
    )


def _refused(reason: str) -> ssl.SSLCertVerificationError:
    return ssl.SSLCertVerificationError(1, f"certificate verify failed: {reason}")


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))
