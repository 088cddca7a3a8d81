"""Claim codes and keys of devices: implements `fleet.services.Enrolment`."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import audit, views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import ClaimCode, DeviceKey
from edgewise.cloud.fleet.enrolment import codes, renewal, rows
from edgewise.cloud.fleet.enrolment.addresses import broker_address
from edgewise.cloud.fleet.enrolment.authority import FOLDER, Authority, Csr, read_csr
from edgewise.cloud.fleet.enrolment.broker_config import FOLDER as BROKER_FOLDER
from edgewise.cloud.fleet.enrolment.broker_config import shut_out
from edgewise.cloud.fleet.enrolment.cloud_keys import CloudKeys
from edgewise.cloud.fleet.labels import check_labels
from edgewise.cloud.fleet.owned import find_device
from edgewise.cloud.fleet.people import secret_tokens
from edgewise.cloud.fleet.people.tries import Tries, network_of
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError, InvalidRequest, NotFound, NotPermitted
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.recurring import recur
from edgewise.core.settings_schema import Settings
from edgewise.wire.envelope import new_ulid
from edgewise.wire.fleet import Challenge, Enrolled, EnrolPoll, EnrolRequest, RenewalQuestion, RenewRequest

log = get_logger(__name__)

KeyT = TypeVar("KeyT", views.KeyView, DeviceKey)
_CRL_S = 30.0
_RETRY_S = 10.0
_MAX_FACTS = 32 * 1024
_TRIES = 200  # of one address: a site may enrol all its devices at once, and nobody guesses 100 bits
_LONGEST_CODE_S = 30 * 86_400.0
_BAD_CODE = "This claim code is unknown, used up or over: ask an admin of the fleet for a new one."


class EnrolmentService:
    """Keys of every tenant's devices.

    Args:
        settings: `[fleet]`, `[mqtt]`, and the state directory, where the authority lies.
    """

    def __init__(self, db: FleetDatabase, changes: Changes, settings: Settings, *, clock: Clock | None = None) -> None:
        self._db = db
        self._changes = changes
        self._clock = clock or SystemClock()
        self._days = settings.fleet.certificate_days
        self._broker = broker_address(settings)
        self._cloud_url = settings.fleet.cloud_url
        keys = settings.fleet.cloud_keys
        self._cloud_keys = None if keys is None or self._cloud_url is None else CloudKeys(keys)
        self.authority = Authority(authority_folder(settings.home), clock=self._clock)
        self._broker_folder = settings.home / BROKER_FOLDER
        self._nonces = renewal.Nonces(self._clock)
        self._tries = Tries(_TRIES, self._clock)
        self._writing = asyncio.Lock()
        self._written: list[tuple[str, float]] | None = None
        self._keeping: asyncio.Task[None] | None = None

    # --- claim codes -------------------------------------------------------------------------------------------------------

    async def codes(self, actor: Actor) -> Sequence[views.CodeView]:
        """Those that can still be used."""
        actor.need("admin")
        query = (
            select(ClaimCode)
            .where(ClaimCode.tenant_id == actor.tenant, ClaimCode.expires_at > self._clock.time(), ClaimCode.uses > 0)
            .order_by(ClaimCode.created_at)
        )
        return await self._db.read(
            lambda session: [views.CodeView.model_validate(_plain(row)) for row in session.scalars(query)]
        )

    async def add_code(
        self,
        actor: Actor,
        *,
        ttl_s: float = 3600.0,
        uses: int = 1,
        auto_accept: bool = False,
        labels: Mapping[str, Any] | None = None,
        uid: str | None = None,
        cloud: bool = False,
    ) -> views.CodeView:
        """Raises `InvalidRequest` for limits that are passed, `NotFound` for a device that is not there."""
        actor.need("admin")
        if not 0 < ttl_s <= _LONGEST_CODE_S:
            raise InvalidRequest("A code lives for 30 days at most.", param="ttl_s")
        if uses < 1 or (uid is not None and uses != 1):
            raise InvalidRequest("A code is used once at least, and once only if it is for one device.", param="uses")
        if cloud and self._cloud_keys is None:
            raise InvalidRequest(
                "Devices get no key for a cloud: set fleet.cloud_url and fleet.cloud_keys.", param="cloud"
            )
        check_labels(labels or {})
        code, now = codes.new_code(), self._clock.time()

        def work(session: Session) -> views.CodeView:
            if uid is not None:
                find_device(session, actor, uid)
            session.execute(delete(ClaimCode).where(ClaimCode.expires_at <= now))
            row = ClaimCode(
                id=new_ulid(),
                tenant_id=actor.tenant,
                digest=codes.digest(code),
                labels=dict(labels or {}),
                auto_accept=auto_accept,
                cloud=cloud,
                uid=uid,
                uses=uses,
                author=actor.name,
                created_at=now,
                expires_at=now + ttl_s,
            )
            session.add(row)
            after = {"uses": uses, "auto_accept": auto_accept, "ttl_s": ttl_s, "uid": uid, "labels": dict(labels or {})}
            audit.record(session, actor, "code.add", row.id, after=after | {"cloud": cloud})
            return views.CodeView.model_validate(_plain(row)).model_copy(update={"code": code})

        view = await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "code", view.id))
        return view

    async def delete_code(self, actor: Actor, code_id: str) -> None:
        actor.need("admin")

        def work(session: Session) -> None:
            row = session.get(ClaimCode, code_id)
            if row is None or row.tenant_id != actor.tenant:
                raise NotFound(f"There is no code {code_id[:40]}.")
            session.delete(row)
            audit.record(session, actor, "code.delete", code_id)

        await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "code", code_id))

    # --- keys --------------------------------------------------------------------------------------------------------------

    async def keys(self, actor: Actor, *, uid: str | None = None, state: str | None = None) -> Sequence[views.KeyView]:
        """The latest first."""
        query = select(DeviceKey).where(DeviceKey.tenant_id == actor.tenant).order_by(DeviceKey.id.desc())
        if uid is not None:
            query = query.where(DeviceKey.uid == uid)
        if state is not None:
            query = query.where(DeviceKey.state == state)
        return await self._db.read(
            lambda session: [views.KeyView.model_validate(row) for row in session.scalars(query)]
        )

    async def decide(self, actor: Actor, key_id: str, accept: bool) -> views.KeyView:
        """Accept or refuse a key that waits.

        Raises:
            NotFound: There is none, or its device is gone.
            InvalidRequest: It does not wait.
        """
        actor.need("admin")
        now = self._clock.time()

        def work(session: Session) -> views.KeyView:
            key = _find_key(session, actor, key_id)
            if key.state != "pending":
                raise InvalidRequest(f"This key does not wait for a decision: it is {key.state}.", param="key_id")
            if accept:
                rows.accept(session, self.authority, key, self._days, now)
            else:
                key.state, key.changed_at = "refused", now
                rows.note(session, key, "key.refused", "warning", f"A key for {key.uid} was refused.", now)
            audit.record(session, actor, "key.accept" if accept else "key.refuse", key.id, after=_named(key))
            return views.KeyView.model_validate(key)

        view = await self._db.write(work)
        if accept:  # the key that it has for the cloud may be in the hands of whoever has the old disk
            await self._end_cloud_keys([view.uid])
        return await self._changed(view, actor.tenant)

    async def revoke(self, actor: Actor, key_id: str) -> views.KeyView:
        """End a key; its device cannot connect any more.

        Raises:
            NotFound, InvalidRequest: There is none, or it has ended already.
        """
        actor.need("admin")
        now = self._clock.time()

        def work(session: Session) -> views.KeyView:
            key = _find_key(session, actor, key_id)
            if key.state not in ("active", "pending"):
                raise InvalidRequest(f"This key has ended: it is {key.state}.", param="key_id")
            audit.record(session, actor, "key.revoke", key.id, before=_named(key))
            rows.end(session, key, "revoked", now)
            return views.KeyView.model_validate(key)

        return await self._changed(await self._db.write(work), actor.tenant)

    def start(self) -> None:
        """Keep the list of revoked certificates up to date, whoever ends a key."""
        work = recur(self.write_crl, every_s=_CRL_S, stuck="crl_not_written")
        self._keeping = asyncio.create_task(work, name="fleet-crl")

    async def stop(self) -> None:
        await end_task(self._keeping)
        if self._cloud_keys is not None:
            await asyncio.to_thread(self._cloud_keys.close)

    async def write_crl(self) -> None:
        """Write the list of revoked certificates and who is shut out at the broker, where they are not as the database has it;
        end the cloud keys of those."""
        async with self._writing:
            now = self._clock.time()
            revoked, gone = await self._db.read(lambda s: (rows.revoked_serials(s, now), rows.shut_out(s)))
            await self._end_cloud_keys(gone)
            await asyncio.to_thread(shut_out, self._broker_folder, gone)
            if revoked != self._written:
                await asyncio.to_thread(self.authority.write_crl, revoked)
                self._written = revoked

    # --- devices -----------------------------------------------------------------------------------------------------------

    async def enrol(self, request: EnrolRequest, address: str) -> Enrolled:
        """A device's first key, for a code. The same code and key again get the same answer: it may have been lost.

        Raises:
            NotPermitted: The code is unknown, used up or over.
            InvalidRequest: The CSR is bad, or its key is known already.
            RateLimited: Too many bad codes from this address.
        """
        place = f"address {network_of(address)}"
        self._tries.take(place)
        csr = read_csr(request.csr)
        if len(json.dumps(request.hardware)) > _MAX_FACTS:
            raise InvalidRequest(f"`hardware` is larger than {_MAX_FACTS} bytes.", param="hardware")
        ticket, now = secrets.token_urlsafe(32), self._clock.time()

        def work(session: Session) -> tuple[Enrolled, DeviceKey]:
            query = select(ClaimCode).where(ClaimCode.digest == codes.digest(request.code)).with_for_update()
            code = session.scalars(query).first()
            if code is None or code.expires_at <= now:
                raise NotPermitted(_BAD_CODE, param="code")
            key = _claimed(session, code, csr)
            if key is None:
                key = _claim(session, code, csr, request, address, now)
                if code.auto_accept:
                    rows.accept(session, self.authority, key, self._days, now)
                else:
                    rows.note(session, key, "key.waiting", "info", f"A key for {key.uid} waits for a decision.", now)
            key.ticket = secret_tokens.digest(ticket)
            return self._answer(key, ticket), key

        answer, key = await self._db.write(work)
        self._tries.give_back(place)
        await self._changed(key, key.tenant_id)
        return await self._with_cloud_key(answer, key)

    async def status(self, poll: EnrolPoll, address: str) -> Enrolled:
        """Raises `NotPermitted` for an unknown ticket, `RateLimited` after too many of those."""
        place = f"address {network_of(address)}"
        self._tries.take(place)
        query = select(DeviceKey).where(DeviceKey.ticket == secret_tokens.digest(poll.ticket))

        def work(session: Session) -> tuple[Enrolled, DeviceKey]:
            key = session.scalars(query).first()
            if key is None:
                raise NotPermitted("This ticket is unknown or over: enrol again.", param="ticket")
            return self._answer(key, poll.ticket), key

        answer, key = await self._db.read(work)
        self._tries.give_back(place)
        return await self._with_cloud_key(answer, key)

    async def challenge(self, question: RenewalQuestion) -> Challenge:
        """Raises `NotPermitted` for a key that may not be renewed."""
        now = self._clock.time()

        def work(session: Session) -> float:
            return renewal.renew_in(renewal.usable_key(session, question.fingerprint), now)

        return Challenge(renew_s=await self._db.read(work), nonce=self._nonces.new())

    async def renew(self, request: RenewRequest, address: str) -> Enrolled:
        """Raises `NotPermitted` for a key that may not be renewed or did not sign; `InvalidRequest` for a bad CSR."""
        self._nonces.check(request.nonce)
        now = self._clock.time()

        def work(session: Session) -> tuple[Enrolled, DeviceKey]:
            key = renewal.renew(session, self.authority, request, address, self._days, now)
            return self._answer(key, ""), key

        try:
            answer, key = await self._db.write(work)
        except renewal.KeyRefused as refused:
            await self._suspect(refused.key, address, now)
            raise
        await self._changed(key, key.tenant_id)
        return answer

    def _answer(self, key: DeviceKey, ticket: str) -> Enrolled:
        if key.state == "pending":
            return Enrolled(state="pending", uid=key.uid, ticket=ticket, retry_s=_RETRY_S)
        if key.state != "active":
            return Enrolled(state="refused", uid=key.uid, reason=f"This key is {key.state}.")
        return Enrolled(
            state="accepted",
            uid=key.uid,
            ticket=ticket,
            certificate=key.certificate,
            ca=self.authority.pem,
            mqtt_host=self._broker.host,
            mqtt_port=self._broker.port,
            mqtt_tls=self._broker.tls,
            cloud_url=self._cloud_url,
            renew_s=renewal.renew_in(key, self._clock.time()),
        )

    async def _with_cloud_key(self, answer: Enrolled, key: DeviceKey) -> Enrolled:
        """With a key for the cloud, if the code says so: a new one each time, since only its hash is kept. A device whose key
        cannot be made is enrolled all the same, and an event says what is missing."""
        if answer.state != "accepted" or self._cloud_keys is None:
            return answer
        if not key.facts.get("cloud"):
            await self._end_cloud_keys([key.uid])
            return answer
        now = self._clock.time()
        try:
            secret = await asyncio.to_thread(self._cloud_keys.issue, key.uid)
        except EdgewiseError as error:
            message = f"{key.uid} has no key for the cloud: {error.message}"
            await self._db.write(lambda session: rows.note(session, key, "cloud-key.failed", "warning", message, now))
            self._changes.publish(Change(key.tenant_id, "event", key.uid))
            return answer
        await self._db.write(
            lambda session: rows.note(
                session, key, "cloud-key.issued", "info", f"{key.uid} has a key for the cloud.", now
            )
        )
        return answer.model_copy(update={"cloud_key": secret})

    async def _end_cloud_keys(self, uids: Sequence[str]) -> None:
        """What fails is logged; for devices that are shut out it is tried again."""
        if self._cloud_keys is not None:
            try:
                await asyncio.to_thread(self._cloud_keys.revoke, uids)
            except EdgewiseError as error:
                log.error("cloud_keys_not_revoked", devices=len(uids), reason=error.message)

    async def _suspect(self, key: DeviceKey | None, address: str, now: float) -> None:
        """Somebody tried to renew a key that was replaced: a copy, or a device that was restored from an old image."""
        if key is None or key.state not in rows.REVOKED:
            return
        message = (
            f"A {key.state} key of {key.uid} was used from {address}: a copy, or a device restored from an old image."
        )
        await self._db.write(lambda session: rows.note(session, key, "key.reused", "critical", message, now))
        self._changes.publish(Change(key.tenant_id, "event", key.uid))

    async def _changed(self, key: KeyT, tenant: str) -> KeyT:
        """After a change of a key is on disk: the broker's list, then whoever looks."""
        await self.write_crl()
        self._changes.publish(Change(tenant, "key", key.id), Change(tenant, "device", key.uid))
        return key


def authority_folder(home: Path) -> Path:
    """Where a fleet service with this state directory keeps its authority."""
    return home / FOLDER


def _claimed(session: Session, code: ClaimCode, csr: Csr) -> DeviceKey | None:
    """The key that this code was used for with this CSR before."""
    key = session.scalars(select(DeviceKey).where(DeviceKey.fingerprint == csr.fingerprint)).first()
    if key is not None and key.facts.get("code") != code.id:
        raise InvalidRequest("`csr`: this key is known already; make a new one.", param="csr")
    return key


def _claim(session: Session, code: ClaimCode, csr: Csr, request: EnrolRequest, address: str, now: float) -> DeviceKey:
    if code.uses < 1:
        raise NotPermitted(_BAD_CODE, param="code")
    code.uses -= 1
    key = DeviceKey(
        id=new_ulid(),
        tenant_id=code.tenant_id,
        uid=code.uid or codes.new_uid(),
        state="pending",
        csr=request.csr,
        fingerprint=csr.fingerprint,
        facts={
            "code": code.id,
            "cloud": code.cloud,
            "name": request.name,
            "labels": code.labels,
            "hardware": request.hardware,
            "address": address[:64],
        },
        created_at=now,
        changed_at=now,
    )
    session.add(key)
    actor = Actor(tenant=code.tenant_id, name=key.uid, via=f"device {address}"[:40])
    audit.record(
        session, actor, "key.request", key.id, after={**_named(key), "code": code.id, "accepted": code.auto_accept}
    )
    return key


def _find_key(session: Session, actor: Actor, key_id: str) -> DeviceKey:
    key = session.get(DeviceKey, key_id, with_for_update=True)
    if key is None or key.tenant_id != actor.tenant:
        raise NotFound(f"There is no key {key_id[:40]}.")
    return key


def _named(key: DeviceKey) -> dict[str, Any]:
    return {"uid": key.uid, "fingerprint": key.fingerprint}


def _plain(row: ClaimCode) -> dict[str, Any]:
    """Without the code, of which only the hash is known."""
    names = ("id", "uid", "labels", "auto_accept", "cloud", "uses", "author", "created_at", "expires_at")
    return {name: getattr(row, name) for name in names}
