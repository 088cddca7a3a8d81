"""A device's calls to its fleet service: over TLS whose dates hold on a wrong clock, or on loopback without.

Nothing but the body proves who calls; see `wire.fleet`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edgewise.core.addresses import is_loopback
from edgewise.core.errors import InvalidRequest, LinkLost
from edgewise.core.tls_time import TimeFloor, client_context
from edgewise.wire.bounded import PLAIN, read_bounded
from edgewise.wire.fleet import Challenge, Enrolled, EnrolRequest, RenewalQuestion, RenewRequest, renewal_text
from edgewise.wire.fleet_http import CHALLENGE, ENROL, RENEW, told_error
from edgewise.wire.messages import Message

_TIMEOUT_S = 20.0
_MAX_ANSWER = 1024**2  # certificates and settings are some kilobytes
AnswerT = TypeVar("AnswerT", bound=Message)


class EnrolmentClient:
    """Use as an async context manager.

    Args:
        url: Of the fleet service.
        floor: Checks dates of its certificate, and learns the time from it.
        ca_file: PEM of an authority that it may be signed by, beside the system's.
        pin: SHA-256 (hex) of its certificate instead: the first time there is no authority to trust yet.

    Raises:
        InvalidRequest: The address is none, or is not on this machine and without TLS.
        ConfigError: `ca_file` cannot be used.
    """

    def __init__(self, url: str, floor: TimeFloor, *, ca_file: Path | None = None, pin: str | None = None) -> None:
        self.url = checked_url(url)
        self._floor = floor
        context = client_context(floor, ca_file=ca_file) if pin is None else _pinned(pin)
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=PLAIN, verify=context, trust_env=False, timeout=_TIMEOUT_S
        )

    async def __aenter__(self) -> EnrolmentClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def enrol(self, request: EnrolRequest) -> Enrolled:
        return await self._post(ENROL, request, Enrolled)

    async def challenge(self, fingerprint: str) -> Challenge:
        return await self._post(CHALLENGE, RenewalQuestion(fingerprint=fingerprint), Challenge)

    async def renew(self, old: ec.EllipticCurvePrivateKey, new: ec.EllipticCurvePrivateKey, nonce: str) -> Enrolled:
        """The certificate of a new key, for a signature by the one in use."""
        csr = make_csr(new)
        signature = base64.b64encode(old.sign(renewal_text(nonce, csr), ec.ECDSA(hashes.SHA256()))).decode()
        request = RenewRequest(fingerprint=fingerprint_of(old), nonce=nonce, csr=csr, signature=signature)
        return await self._post(RENEW, request, Enrolled)

    async def _post(self, path: str, message: Message, kind: type[AnswerT]) -> AnswerT:
        """Raises `LinkLost` if it is not reached or answers nonsense, else the error that it names."""
        asked = message.model_dump(mode="json", exclude_none=True)
        try:
            async with self._http.stream("POST", path, json=asked) as response:
                self._learn_time(response)
                content = await read_bounded(response, _MAX_ANSWER)
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise LinkLost(
                f"The fleet service at {self.url} cannot be reached: {error or type(error).__name__}."
            ) from error
        try:
            body = json.loads(content)
        except ValueError:
            body = None
        if not response.is_success:
            raise told_error(body, response.status_code, response.headers.get("retry-after"))
        try:
            return kind.model_validate(body)
        except ValueError as error:
            raise LinkLost(f"What answers at {self.url} is no fleet service.") from error

    def _learn_time(self, response: httpx.Response) -> None:
        """A fleet service whose certificate was verified says what time it is."""
        stream = response.extensions.get("network_stream")
        tls = None if stream is None else stream.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert()
        if not certificate:
            return  # no TLS, or pinned: nobody vouches for its dates
        try:
            moment = parsedate_to_datetime(response.headers.get("date", "")).timestamp()
        except ValueError:
            return
        self._floor.saw_peer(moment, certificate)


def make_csr(key: ec.EllipticCurvePrivateKey) -> str:
    """A request for a certificate, PEM. The name in it means nothing: the fleet gives the device its name."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edgewise-device")])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return csr.public_bytes(serialization.Encoding.PEM).decode()


def fingerprint_of(key: ec.EllipticCurvePrivateKey) -> str:
    """SHA-256 of the public key (SubjectPublicKeyInfo, DER) in hex, as the fleet shows it."""
    der = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def checked_url(url: str) -> str:
    """The address of a fleet service without a trailing slash; raises `InvalidRequest` for one that will not do."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidRequest(f"{url[:200]!r} is no address: {error}.", param="fleet") from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise InvalidRequest(f"{url[:200]!r} is no address: write https://HOST:PORT.", param="fleet")
    if parts.scheme == "http" and not is_loopback(host) and host != "localhost":
        raise InvalidRequest(
            f"{url[:200]}: over plain HTTP anybody on the way could take the code; the fleet service must have a certificate.",
            param="fleet",
        )
    return url.rstrip("/")


def _pinned(pin: str) -> ssl.SSLContext:
    """A context that trusts exactly one certificate."""
    wanted = pin.lower().removeprefix("sha256:").replace(":", "")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    class Pinned(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            seen = hashlib.sha256(self.getpeercert(binary_form=True) or b"").hexdigest()
            if not hmac.compare_digest(seen, wanted):
                raise ssl.SSLCertVerificationError(1, f"its certificate is sha256:{seen}, not the one that was pinned")

    context.sslobject_class = Pinned
    return context
