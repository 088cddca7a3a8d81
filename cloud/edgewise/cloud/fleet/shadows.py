"""What is desired of devices and what they report; implements `fleet.services.Shadows`.

A desired document is whole and has a generation. It is retained at the broker, and compared in full at each sync of its device,
so one that was made while the device or the broker was away is applied all the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.attendance import evaluate, set_models
from edgewise.cloud.fleet.audit import record
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Device, ShadowPast, ShadowRow
from edgewise.cloud.fleet.downlink import Downlink
from edgewise.cloud.fleet.events import note
from edgewise.cloud.fleet.ingest import Ingest
from edgewise.cloud.fleet.owned import chunks, find_device, find_devices
from edgewise.cloud.fleet.syncs import Synced, Syncs
from edgewise.cloud.fleet.uplink import Uplink
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError, InvalidRequest
from edgewise.core.log import get_logger
from edgewise.wire.fleet import SHADOWS, Desired, ModelState, Reported, Shadow

log = get_logger(__name__)

MAX_DOCUMENT = 256 * 1024
"""Bytes of a desired document; it must fit one message."""
KEPT = 10
"""Generations of a shadow that are kept."""
_MODELS = TypeAdapter(list[ModelState])


class ShadowService:
    """`register` it before the link is started."""

    def __init__(self, db: FleetDatabase, changes: Changes, downlink: Downlink, *, clock: Clock | None = None) -> None:
        self._db, self._changes, self._downlink = db, changes, downlink
        self._clock = clock or SystemClock()
        self._sending = asyncio.Lock()
        self._sent: dict[tuple[str, str], int] = {}

    def register(self, ingest: Ingest, syncs: Syncs) -> None:
        ingest.on("rep", receive_reported)
        syncs.add(self._answer)

    # --- for people and programs -----------------------------------------------------------------------------------------

    async def desire(self, actor: Actor, uid: str, shadow: Shadow, document: Mapping[str, Any]) -> views.ShadowView:
        """A new generation of the whole document, retained at the broker at once.

        Raises:
            InvalidRequest: Unknown shadow, or a document that is too large or no JSON.
        """
        await self.desire_all(actor, [uid], shadow, document)
        return await self.shadow(actor, uid, shadow)

    async def desire_all(
        self, actor: Actor, uids: Sequence[str], shadow: Shadow, document: Mapping[str, Any]
    ) -> Mapping[str, int]:
        """As `desire`, of many devices in one transaction; returns the generation of each."""
        actor.need("operator")
        _check(shadow, document)
        now = self._clock.time()

        def work(session: Session) -> dict[str, int]:
            devices = find_devices(session, actor, uids)
            return {device.uid: _desire(session, actor, device, shadow, document, now) for device in devices}

        gens = await self._db.write(work)
        self._changes.publish(*(Change(actor.tenant, "shadow", uid) for uid in gens))
        for uid, gen in gens.items():
            try:
                await self._send(uid, shadow, _message_of(gen, document, actor.name))
            except EdgewiseError as error:
                log.info(
                    "fleet_desired_waits", uid=uid, shadow=shadow, reason=error.message
                )  # for the device's next sync
        return gens

    async def shadow(self, actor: Actor, uid: str, shadow: Shadow) -> views.ShadowView:
        """One shadow of a device; generation 0 where nothing was ever desired."""
        _check(shadow, {})

        def work(session: Session) -> views.ShadowView:
            find_device(session, actor, uid)
            row = session.get(ShadowRow, (uid, shadow))
            return (
                views.ShadowView(uid=uid, shadow=shadow, gen=0) if row is None else views.ShadowView.model_validate(row)
            )

        return await self._db.read(work)

    async def past(self, actor: Actor, uid: str, shadow: Shadow) -> Sequence[views.ShadowView]:
        """Documents that were desired before, the latest first; as many as are kept."""

        def work(session: Session) -> list[views.ShadowView]:
            find_device(session, actor, uid)
            query = select(ShadowPast).where(ShadowPast.uid == uid, ShadowPast.shadow == shadow)
            return [
                views.ShadowView(
                    uid=uid, shadow=shadow, gen=row.gen, desired=row.document, author=row.author, desired_at=row.at
                )
                for row in session.scalars(query.order_by(ShadowPast.gen.desc()))
            ]

        return await self._db.read(work)

    # --- to devices ------------------------------------------------------------------------------------------------------

    async def linked(self) -> None:
        """The broker is there (again), perhaps another one: it gets every document that its device has not seen."""
        rows = await self._db.read(_unseen)
        for row in rows:
            await self._send(row.uid, row.shadow, _message(row), again=True)

    async def _answer(self, batch: Mapping[str, Synced]) -> None:
        """Send what is newer here than on the device. One that has seen a later generation than there ever was here (this
        database was restored from a backup) gets the document under a generation that it has not seen."""
        rows = await self._db.read(lambda session: _desired(session, list(batch)))
        ahead = [row for row in rows if batch[row.uid].sync.gens.get(row.shadow, 0) > row.gen]  # type: ignore[call-overload]
        if ahead:
            now = self._clock.time()
            await self._db.write(lambda session: _overtake(session, ahead, batch, now))
            rows = await self._db.read(lambda session: _desired(session, list(batch)))
        for row in rows:
            if batch[row.uid].sync.gens.get(row.shadow, 0) < row.gen:  # type: ignore[call-overload]
                await self._send(row.uid, row.shadow, _message(row), again=True)

    async def _send(self, uid: str, shadow: str, desired: Desired, *, again: bool = False) -> None:
        """Never an older generation after a newer one: the broker keeps the last."""
        async with self._sending:
            last = self._sent.get((uid, shadow), 0)
            if desired.gen > last or (again and desired.gen == last):
                await self._downlink.desired(uid, shadow, desired)
                self._sent[uid, shadow] = desired.gen


# --- in a transaction -----------------------------------------------------------------------------------------------------------


def receive_reported(session: Session, device: Device, uplink: Uplink) -> list[Change]:
    """Handler of `up/rep/<shadow>`; an older report than the one that is known changes nothing."""
    reported, row = uplink.read(Reported), _row(session, device.uid, uplink.key)
    if uplink.envelope.place <= (row.ep, row.seq):
        return []
    row.ep, row.seq = uplink.envelope.place
    row.seen, row.applied, row.state, row.reason = reported.seen, reported.applied, reported.state, reported.reason
    row.reported, row.reported_at = reported.document, uplink.at
    row.edits = [edit.model_dump(mode="json") for edit in reported.edits]
    changes = [Change(device.tenant_id, "shadow", device.uid)]
    if uplink.key == "models" and (models := _models(reported.document)) is not None:
        set_models(session, device, models)
        changes += [*evaluate(session, device, uplink.at), Change(device.tenant_id, "device", device.uid)]
    return changes


def _desire(
    session: Session, actor: Actor, device: Device, shadow: Shadow, document: Mapping[str, Any], now: float
) -> int:
    row = _row(session, device.uid, shadow)
    before = row.desired
    if before is not None:
        past = {"gen": row.gen, "document": before, "author": row.author, "at": row.desired_at or now}
        session.merge(ShadowPast(uid=device.uid, shadow=shadow, **past))
        old = row.gen - KEPT
        session.execute(
            delete(ShadowPast).where(ShadowPast.uid == device.uid, ShadowPast.shadow == shadow, ShadowPast.gen <= old)
        )
    row.gen += 1
    row.desired, row.author, row.desired_at = dict(document), actor.name, now
    facts = {"gen": row.gen, "document": dict(document)}
    record(session, actor, f"shadow.{shadow}", device.uid, before={"document": before}, after=facts)
    return row.gen


def _row(session: Session, uid: str, shadow: str) -> ShadowRow:
    query = select(ShadowRow).where(ShadowRow.uid == uid, ShadowRow.shadow == shadow).with_for_update(key_share=True)
    row = session.scalars(query).first()
    if row is None:
        row = ShadowRow(uid=uid, shadow=shadow, gen=0, ep=0, seq=0, edits=[])
        session.add(row)
        session.flush()
    return row


def _desired(session: Session, uids: Sequence[str]) -> list[ShadowRow]:
    found: list[ShadowRow] = []
    for some in chunks(uids):
        found += session.scalars(select(ShadowRow).where(ShadowRow.uid.in_(some), ShadowRow.gen > 0))
    return found


def _unseen(session: Session) -> list[ShadowRow]:
    query = select(ShadowRow).join(Device, Device.uid == ShadowRow.uid)
    return list(session.scalars(query.where(ShadowRow.gen > ShadowRow.seen, Device.retired_at.is_(None))))


def _message(row: ShadowRow) -> Desired:
    return _message_of(row.gen, row.desired, row.author)


def _message_of(gen: int, document: Mapping[str, Any] | None, author: str) -> Desired:
    """A document that somebody desired empty is meant so; one that is not there is not."""
    return Desired(gen=gen, document=dict(document or {}), clear=document is not None and not document, author=author)


def _overtake(session: Session, ahead: Iterable[ShadowRow], batch: Mapping[str, Synced], now: float) -> None:
    for old in ahead:
        row, one = _row(session, old.uid, old.shadow), batch[old.uid]
        seen = one.sync.gens.get(row.shadow, 0)  # type: ignore[call-overload]
        if seen > row.gen:
            message = f"The device has seen generation {seen} of {row.shadow}, here it was {row.gen}: it is sent anew."
            note(session, one.tenant, "shadow.ahead", "warning", message, at=now, uid=row.uid)
            row.gen = seen + 1


def _models(document: Mapping[str, Any]) -> list[dict[str, object]] | None:
    """The models that a report lists; None if it lists none in a form that is known."""
    try:
        return [model.model_dump(mode="json") for model in _MODELS.validate_python(document.get("models"))]
    except ValidationError:
        return None


def _check(shadow: str, document: Mapping[str, Any]) -> None:
    if shadow not in SHADOWS:
        raise InvalidRequest(f"{shadow[:40]!r} is no shadow: {', '.join(SHADOWS)}", param="shadow")
    try:
        size = len(json.dumps(document, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"document: it is no JSON: {error}", param="document") from error
    if size > MAX_DOCUMENT:
        raise InvalidRequest(f"document: it has {size} bytes, at most {MAX_DOCUMENT} are possible.", param="document")
