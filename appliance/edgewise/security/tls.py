"""Checks a TLS certificate and its key before the service starts, so that a mistake is named and not met in a handshake.

The dates are read from the certificate's DER form (RFC 5280, 4.1: Certificate -> TBSCertificate -> Validity), because the
standard library shows them only for a peer of a verified connection.
"""

from __future__ import annotations

import re
import ssl
import stat
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import ConfigError

_PEM_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


class CertificateDatesError(ConfigError):
    """The certificate is not valid at this moment; a renewed one, or a clock that has been set, mends it."""

    code = "certificate_dates"
    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """A certificate and key that belong together and are valid now.

    Attributes:
        not_before, not_after: Validity of the first certificate in the file.
        warnings: What should be mended soon, in words.
    """

    cert: Path
    key: Path
    not_before: datetime
    not_after: datetime
    warnings: tuple[str, ...] = ()

    def uvicorn_options(self) -> dict[str, str]:
        """Keyword arguments for `uvicorn.Config`; its server context asks for TLS 1.2 or later."""
        return {"ssl_certfile": str(self.cert), "ssl_keyfile": str(self.key)}


def check_tls(cert: Path | None, key: Path | None, *, clock: Clock | None = None) -> TlsFiles | None:
    """Check what `tls.cert` and `tls.key` name.

    Returns:
        None when neither is set: plain HTTP.

    Raises:
        ConfigError: A file is missing, unreadable or not PEM; the key has a passphrase or does not match the certificate.
        CertificateDatesError: The certificate has expired or is not valid yet.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("set both tls.cert and tls.key, or neither")
    pem, _ = _read("tls.cert", cert), _read("tls.key", key)
    match = _PEM_CERTIFICATE.search(pem)
    if match is None:
        raise ConfigError(f"tls.cert: {cert} holds no PEM certificate")
    _check_pair(cert, key)
    not_before, not_after = validity(ssl.PEM_cert_to_DER_cert(match[0]))
    now = datetime.fromtimestamp((clock or SystemClock()).time(), tz=timezone.utc)
    if now >= not_after:
        raise CertificateDatesError(
            f"tls.cert: {cert} expired on {not_after:%Y-%m-%d %H:%M} UTC; install a renewed certificate"
        )
    if now < not_before:
        raise CertificateDatesError(
            f"tls.cert: {cert} is not valid before {not_before:%Y-%m-%d %H:%M} UTC; check the certificate and the clock"
        )
    warnings = _warnings(key, (not_after - now).days)
    return TlsFiles(cert=cert, key=key, not_before=not_before, not_after=not_after, warnings=warnings)


def validity(der: bytes) -> tuple[datetime, datetime]:
    """First and last moment at which a certificate in DER form is valid.

    Raises:
        ConfigError: The bytes are no X.509 certificate.
    """
    try:
        certificate, _ = _element(der, 0, _SEQUENCE)
        body, _ = _element(certificate, 0, _SEQUENCE)
        position = 0
        if body[0] == _VERSION:
            position = _element(body, 0)[1]
        for _ in ("serial number", "signature", "issuer"):
            position = _element(body, position)[1]
        dates, _ = _element(body, position, _SEQUENCE)
        not_before, position = _time(dates, 0)
        not_after, _ = _time(dates, position)
    except (IndexError, ValueError) as error:
        raise ConfigError("tls.cert: not an X.509 certificate") from error
    return not_before, not_after


def _element(data: bytes, position: int, tag: int | None = None) -> tuple[bytes, int]:
    """Content of the DER element at `position`, and where the next one begins."""
    if tag is not None and data[position] != tag:
        raise ValueError(f"DER tag {data[position]:#x} where {tag:#x} belongs")
    length, start = data[position + 1], position + 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(data[start : start + count], "big"), start + count
    if start + length > len(data):
        raise ValueError("DER element longer than its container")
    return data[start : start + length], start + length


def _time(data: bytes, position: int) -> tuple[datetime, int]:
    """UTCTime has two digits of the year, of which 50 to 99 mean 19xx (RFC 5280, 4.1.2.5.1); GeneralizedTime has four."""
    tag = data[position]
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"DER tag {tag:#x} where a time belongs")
    content, following = _element(data, position)
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc), following


def _read(name: str, path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read ({error.strerror}); check path and permissions") from error


def _check_pair(cert: Path, key: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # The callback keeps OpenSSL from asking for a passphrase on the terminal of a service that has none.
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls.key: {key} does not belong to the certificate {cert}") from error
        raise ConfigError(
            f"tls.cert, tls.key: {cert} and {key} cannot be used ({error.reason or error}); "
            "both must be PEM, the key without a passphrase"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"tls.key: {key} has a passphrase; store the key without one, readable by its owner"
        ) from error


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _warnings(key: Path, days_left: int) -> tuple[str, ...]:
    found = []
    if days_left < 14:
        found.append(f"the certificate expires in {days_left} days")
    if key.stat().st_mode & stat.S_IROTH:
        found.append(f"every user of this machine can read {key}; run `chmod o-r {key}`")
    return tuple(found)
