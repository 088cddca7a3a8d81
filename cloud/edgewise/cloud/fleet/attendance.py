"""Who is there: enters what `presence.py` decides into the rows of devices, and looks at the time.

After this service or its broker was away, a device that the database believes there may have gone unseen. The broker says anew
what is retained, a device that lives connects or sends; one of which nothing is heard within `window_s` is offline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import presence
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Device, DeviceModel
from edgewise.cloud.fleet.events import note
from edgewise.cloud.fleet.health import ailment
from edgewise.cloud.fleet.ingest import Ingest
from edgewise.cloud.fleet.owned import chunks
from edgewise.cloud.fleet.presence import PRESENT, Presence
from edgewise.cloud.fleet.query.versions import version_key
from edgewise.cloud.fleet.uplink import KINDS, Uplink
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.wire.fleet import Birth, Live, Severity

log = get_logger(__name__)

WINDOW_S = 150.0
"""Longest pause between two connects of a device (two minutes) and some."""
_LOOK_S = 1.0
_TOLD: dict[str, Severity] = {"online": "info", "degraded": "warning", "offline": "warning", "offline-expected": "info"}


class Attendance:
    """Args:
    grace_s: A device whose will came has so long to be back.
    window_s: A device must be heard of within so long after `began`.
    """

    def __init__(
        self,
        db: FleetDatabase,
        changes: Changes,
        *,
        grace_s: float,
        window_s: float = WINDOW_S,
        clock: Clock | None = None,
    ) -> None:
        self._db, self._changes = db, changes
        self._grace_s, self._window_s = grace_s, window_s
        self._clock = clock or SystemClock()
        self._heard: set[str] = set()
        self._unsure_until: float | None = None
        self._task: asyncio.Task[None] | None = None

    def register(self, ingest: Ingest) -> None:
        ingest.on("live", receive_live)
        ingest.on("birth", receive_birth)
        for kind in KINDS:
            ingest.on(kind, receive_any, after=self._confirm)

    def start(self) -> None:
        self.began()
        self._task = asyncio.create_task(self._run(), name="fleet-attendance")

    async def stop(self) -> None:
        await end_task(self._task)

    def began(self) -> None:
        """This service, or its link to the broker, is (again) there: what was before must be confirmed."""
        self._heard.clear()
        self._unsure_until = self._clock.monotonic() + self._window_s

    async def look(self) -> None:
        """Enter what time has made of it, once."""
        now = self._clock.time()
        over = self._unsure_until is not None and self._clock.monotonic() >= self._unsure_until
        uids = await self._db.read(lambda session: _due(session, now, self._grace_s, over))
        silent = {uid for uid in uids if uid not in self._heard} if over else set()

        def after(uid: str, before: Presence) -> Presence:
            aged = presence.passed(before, now, self._grace_s)
            return presence.lost(aged, now) if uid in silent else aged

        changes = await self._db.write(lambda session: _pass(session, uids, after, now)) if uids else []
        if over:
            self._unsure_until = None
            self._heard.clear()
        self._changes.publish(*changes)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(_LOOK_S)
            try:
                await self.look()
            except EdgewiseError as error:
                log.error("fleet_attendance_waits", reason=error.message)
            except Exception:  # a fault must not end the watch over all devices
                log.exception("fleet_attendance_failed")

    def _confirm(self, _tenant: str, uplink: Uplink) -> None:
        if self._unsure_until is not None and (not uplink.retained or uplink.kind == "live"):
            self._heard.add(uplink.uid)


# --- handlers, in the transaction of a batch ------------------------------------------------------------------------------------


def receive_live(session: Session, device: Device, uplink: Uplink) -> list[Change]:
    """Handler of `up/live`."""
    live, (ep, seq) = uplink.read(Live), uplink.envelope.place
    return enter(session, device, presence.said(of_row(device), live, ep, seq, uplink.at), uplink.at)


def receive_any(session: Session, device: Device, uplink: Uplink) -> list[Change]:
    """Handler of all kinds: a device that speaks is there. What the broker has kept proves nothing."""
    if uplink.retained or uplink.kind == "live":
        return []
    return enter(session, device, presence.heard(of_row(device), uplink.envelope.ep, uplink.at), uplink.at)


def receive_birth(session: Session, device: Device, uplink: Uplink) -> list[Change]:
    """Handler of `up/birth`; a repeat, and one of an older session, changes nothing."""
    place = uplink.envelope.place
    if place <= (device.birth_ep, device.birth_seq):
        return []
    birth = uplink.read(Birth)
    if device.boot and device.boot != birth.boot:
        note(
            session, device.tenant_id, "device.booted", "info", "The machine has started.", at=uplink.at, uid=device.uid
        )
    if device.version and device.version != birth.version:
        message = f"The software is {birth.version} now; it was {device.version}."
        note(session, device.tenant_id, "device.version", "info", message, at=uplink.at, uid=device.uid)
    device.birth_ep, device.birth_seq = place
    device.version, device.version_key, device.boot = birth.version, version_key(birth.version), birth.boot
    device.birth = birth.model_dump(mode="json", exclude={"models"})
    set_models(session, device, [model.model_dump(mode="json") for model in birth.models])
    if not device.name and birth.name:
        device.name, device.folded = birth.name, birth.name.casefold()
    return [*evaluate(session, device, uplink.at), Change(device.tenant_id, "device", device.uid)]


def set_models(session: Session, device: Device, models: Sequence[dict[str, object]]) -> None:
    """What the device holds, in its row and to be searched."""
    if device.models == list(models):
        return
    device.models = list(models)
    held = {str(model["name"]).casefold(): model for model in models if model.get("state") != "removed"}
    for row in session.scalars(select(DeviceModel).where(DeviceModel.uid == device.uid)):
        if row.name not in held:
            session.delete(row)
    for name, model in held.items():
        digest = model.get("digest")
        session.merge(
            DeviceModel(
                uid=device.uid,
                name=name[:256],
                digest=None if digest is None else str(digest)[:80],
                loaded=bool(model.get("loaded")),
                state=str(model.get("state", "ready")),
            )
        )


def evaluate(session: Session, device: Device, now: float) -> list[Change]:
    """Enter whether the device is well, by its newest gauges and models."""
    return enter(session, device, presence.well(of_row(device), ailment(device.gauges, device.models), now), now)


# --- rows -----------------------------------------------------------------------------------------------------------------------


def of_row(device: Device) -> Presence:
    return Presence(
        state=device.state,  # type: ignore[arg-type]  # only states are written
        reason=device.state_reason,
        since=device.state_at,
        ep=device.ep,
        seq=device.seq,
        ended=device.ended,
        gone_at=device.gone_at,
        expected_until=device.expected_until,
        degraded=device.degraded,
    )


def enter(session: Session, device: Device, after: Presence, now: float) -> list[Change]:
    """Write it down; a change of state is an event."""
    if of_row(device) == after:
        return []
    changed = device.state != after.state
    device.state, device.state_reason, device.state_at = after.state, after.reason, after.since
    device.ep, device.seq, device.ended = after.ep, after.seq, after.ended
    device.gone_at, device.expected_until, device.degraded = after.gone_at, after.expected_until, after.degraded
    if not changed:
        return []
    if after.state in _TOLD:
        message = f"The device is {after.state}" + (f": {after.reason}" if after.reason else "") + "."
        note(session, device.tenant_id, f"device.{after.state}", _TOLD[after.state], message, at=now, uid=device.uid)
    return [Change(device.tenant_id, "device", device.uid), Change(device.tenant_id, "event", device.uid)]


def forget_sessions(device: Device) -> None:
    """Begin anew with a device whose disk was replaced or wiped: its sessions are numbered from 1 again, and would all count as
    old. For whoever gives it a new key."""
    device.ep = device.seq = device.birth_ep = device.birth_seq = 0
    device.ended = False


def _due(session: Session, now: float, grace_s: float, everybody: bool) -> list[str]:
    late = or_(
        and_(Device.gone_at.is_not(None), Device.gone_at <= now - grace_s),
        and_(Device.state == "offline-expected", Device.expected_until <= now),
    )
    there = Device.state.in_(PRESENT)
    return list(session.scalars(select(Device.uid).where(or_(late, there) if everybody else late)))


def _pass(
    session: Session, uids: Sequence[str], after: Callable[[str, Presence], Presence], now: float
) -> list[Change]:
    changes: list[Change] = []
    for some in chunks(uids):
        query = select(Device).where(Device.uid.in_(some)).order_by(Device.uid).with_for_update(key_share=True)
        for device in session.scalars(query):
            changes += enter(session, device, after(device.uid, of_row(device)), now)
    return changes
