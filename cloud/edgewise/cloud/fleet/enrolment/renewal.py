"""Renewal: a device asks when it is due, and gets its next certificate for a signature by the key that it has.

No clock of the device takes part, and no certificate of its TLS connection either: one that has expired in the field is renewed
as any other, as long as its key was neither revoked nor replaced.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import audit
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.db.tables import Device, DeviceKey
from edgewise.cloud.fleet.enrolment import rows
from edgewise.cloud.fleet.enrolment.authority import Authority, read_csr
from edgewise.core.clock import Clock
from edgewise.core.errors import InvalidRequest, NotPermitted
from edgewise.wire.envelope import new_ulid
from edgewise.wire.fleet import RenewRequest, renewal_text

_NONCE_S = 600.0
_DUE = 2 / 3


class Nonces:
    """Made and checked without keeping them: what a device signs is fresh, and belongs to this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._secret = secrets.token_bytes(32)

    def new(self) -> str:
        text = f"{self._clock.monotonic():.0f}.{secrets.token_hex(16)}"
        return f"{text}.{self._mark(text)}"

    def check(self, nonce: str) -> None:
        """Raises `NotPermitted` for one that is not ours or too old."""
        text, _, mark = nonce.rpartition(".")
        if not hmac.compare_digest(mark.encode(), self._mark(text).encode()):
            raise NotPermitted("`nonce` is not of this service: ask for a challenge again.", param="nonce")
        if self._clock.monotonic() - float(text.partition(".")[0]) > _NONCE_S:
            raise NotPermitted("`nonce` is too old: ask for a challenge again.", param="nonce")

    def _mark(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()


def renew_in(key: DeviceKey, now: float) -> float:
    """Seconds until two thirds of the life of a key's certificate have passed."""
    assert key.certificate is not None
    certificate = x509.load_pem_x509_certificate(key.certificate.encode())
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return max(0.0, begin + _DUE * (end - begin) - now)


def usable_key(session: Session, fingerprint: str) -> DeviceKey:
    """The key that a device names, if it is one that may be renewed.

    Raises:
        NotPermitted: Unknown, waiting, revoked, replaced, or of a device that was decommissioned. The use of a key that was
            replaced is noted: somebody has a copy.
    """
    key = session.scalars(select(DeviceKey).where(DeviceKey.fingerprint == fingerprint)).first()
    device = None if key is None else session.get(Device, key.uid)
    if key is None or key.state != "active" or device is None or device.retired_at is not None:
        raise KeyRefused(key)
    return key


class KeyRefused(NotPermitted):
    """A key that may not be renewed; `key` is its row, None for an unknown one."""

    def __init__(self, key: DeviceKey | None) -> None:
        state = "unknown" if key is None else key.state
        super().__init__(f"This key is {state} here: the device must be enrolled again with a new code.")
        self.key = key


def renew(
    session: Session, authority: Authority, request: RenewRequest, address: str, days: float, now: float
) -> DeviceKey:
    """The new key's row.

    The key that signed stays good until its end: the answer may be lost, and the device then asks again with it. All other keys
    of the device are replaced, since it does not use them.

    Raises:
        NotPermitted, InvalidRequest: The key may not be renewed, the signature is wrong, or the CSR is.
    """
    key = usable_key(session, request.fingerprint)
    check_signature(read_csr(key.csr).key, request)
    csr = read_csr(request.csr)
    known = session.scalars(select(DeviceKey).where(DeviceKey.fingerprint == csr.fingerprint)).first()
    if known is not None:
        if known.state == "active" and known.facts.get("renews") == key.id:
            return known
        raise InvalidRequest("`csr`: make a new key for each renewal; this one is known already.", param="csr")
    for other in rows.active_keys(session, key.uid):
        if other.id != key.id:
            rows.end(session, other, "replaced", now)
    new = DeviceKey(
        id=new_ulid(),
        tenant_id=key.tenant_id,
        uid=key.uid,
        state="active",
        csr=request.csr,
        fingerprint=csr.fingerprint,
        facts={"renews": key.id, "address": address[:64]},
        created_at=now,
        changed_at=now,
    )
    session.add(new)
    rows.activate(authority, new, days, now)
    rows.note(session, new, "key.renewed", "info", f"{key.uid} has renewed its certificate.", now)
    actor = Actor(tenant=key.tenant_id, name=key.uid, via=f"device {address}"[:40])
    audit.record(session, actor, "key.renew", new.id, after={"uid": key.uid, "fingerprint": new.fingerprint})
    return new


def check_signature(key: ec.EllipticCurvePublicKey, request: RenewRequest) -> None:
    """Raises `NotPermitted` unless the key made the request's signature."""
    try:
        signature = base64.b64decode(request.signature, validate=True)
        key.verify(signature, renewal_text(request.nonce, request.csr), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, binascii.Error, ValueError) as error:
        raise NotPermitted("`signature` was not made by this key over nonce and csr.", param="signature") from error
