"""What devices send, into the database: many messages in one transaction, each once, acknowledged only when it is on disk.

A message waits in memory until its batch is committed; then its device hears `Received` and may forget it. So whatever is lost in
between (this process, a full queue) comes again. Messages that are said anew at each connect (`uplink.UNKEPT`) are not
acknowledged; they have twice the room in the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase, NotStorable
from edgewise.cloud.fleet.db.tables import Arrival, Device
from edgewise.cloud.fleet.events import note
from edgewise.cloud.fleet.metrics import FleetMetrics
from edgewise.cloud.fleet.owned import chunks
from edgewise.cloud.fleet.uplink import KINDS, UNKEPT, Arrived, UnreadableBody, Uplink, kind_of, read_uplink
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import BadMessage, EdgewiseError, StorageError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.wire.fleet import Live
from edgewise.wire.mqtt.connection import Incoming

log = get_logger(__name__)

Handler = Callable[[Session, Device, Uplink], Iterable[Change]]
"""Does what a message asks, in the batch's transaction; returns what changed. It may be called again for the same message if the
transaction is done anew, so it has no other effects. Raises `BadMessage` to have the message dropped."""
After = Callable[[str, Uplink], None]
"""Called in the event loop with (tenant, message) when the batch is committed; for repeats too."""

MAX_BATCH = 256
MAX_BATCH_BYTES = 4 * 1024**2
MAX_WAITING_BYTES = 32 * 1024**2
GATHER_S = 0.05
"""Telemetry waits so long for more of it: a transaction costs as much as two messages. Nothing else waits."""
_OVERHEAD = 512  # bytes of a waiting message beside its payload
_AGAIN_S = 1.0
_TELL_S = 60.0  # an event about dropped messages of one device and reason comes so often at most
_TELLING = 1000
_KEEP_S = {"tel": 3 * 86_400.0}
_KEEP_OTHERS_S = 15 * 86_400.0


@dataclass(slots=True)
class _Batch:
    """What a transaction did."""

    done: list[tuple[str, Uplink]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    received: dict[str, list[str]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def receive(self, uid: str, id: str) -> None:
        self.received.setdefault(uid, []).append(id)


class Ingest:
    """Args:
    acknowledge: Sends `Received` with ids of rows to a device; what fails is asked again by the device.
    gather_s: See `GATHER_S`.
    """

    def __init__(
        self,
        db: FleetDatabase,
        changes: Changes,
        acknowledge: Callable[[str, Sequence[str]], Awaitable[None]],
        metrics: FleetMetrics,
        *,
        clock: Clock | None = None,
        max_waiting: int = MAX_WAITING_BYTES,
        gather_s: float = GATHER_S,
    ) -> None:
        self._db, self._changes, self._acknowledge, self._metrics = db, changes, acknowledge, metrics
        self._clock = clock or SystemClock()
        self._max_waiting, self._gather_s = max_waiting, gather_s
        self._handlers: dict[str, list[Handler]] = {kind: [] for kind in KINDS}
        self._afters: dict[str, list[After]] = {kind: [] for kind in KINDS}
        self._waiting: deque[Arrived] = deque()
        self._bytes = 0
        self._some, self._urgent = asyncio.Event(), asyncio.Event()
        self._told: dict[tuple[str, str], float] = {}
        self._task: asyncio.Task[None] | None = None

    def on(self, kind: str, handler: Handler | None = None, *, after: After | None = None) -> None:
        """Have messages of a kind handled. Handlers of one kind run in the order in which they were added."""
        if handler is not None:
            self._handlers[kind].append(handler)
        if after is not None:
            self._afters[kind].append(after)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="fleet-ingest")

    async def stop(self) -> None:
        """What still waits is dropped: its devices send it again."""
        await end_task(self._task)

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def take(self, incoming: Incoming) -> None:
        """Put a message into the queue, or drop it: a full queue must not fill the memory. For the link's handlers."""
        if not incoming.payload:
            return  # what was retained on this topic was cleared
        try:
            _, kind = kind_of(incoming.topic)
        except BadMessage:
            self._metrics.dropped.labels("malformed").inc()
            return
        size = len(incoming.payload) + _OVERHEAD
        limit = self._max_waiting * (2 if kind in UNKEPT else 1)
        if self._bytes + size > limit:
            self._metrics.dropped.labels("busy").inc()
            return
        self._waiting.append(Arrived(incoming.topic, incoming.payload, incoming.retain, self._clock.time()))
        self._bytes += size
        self._some.set()
        if kind != "tel":
            self._urgent.set()

    # --- batches ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            await self._gather()
            self._some.clear()
            while batch := self._next():
                await self._store(batch)
                self._bytes -= sum(len(one.payload) + _OVERHEAD for one in batch)
                self._metrics.waiting.set(self._bytes)

    async def _gather(self) -> None:
        """Until something waits that is no telemetry, or for long enough."""
        timer = asyncio.get_running_loop().call_later(self._gather_s, self._urgent.set)
        try:
            await self._urgent.wait()
        finally:
            timer.cancel()
        self._urgent.clear()

    def _next(self) -> list[Arrived]:
        batch: list[Arrived] = []
        size = 0
        while self._waiting and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].payload)
        return batch

    async def _store(self, batch: list[Arrived]) -> None:
        """Until it is on disk. A message on which the database itself fails is found and dropped, the others are kept."""
        while True:
            try:
                began = time.monotonic()
                done = await self._db.write(lambda session: self._work(session, batch))
                self._metrics.batch_seconds.observe(time.monotonic() - began)
                break
            except StorageError as error:
                log.error("fleet_ingest_waits", reason=error.message, waiting=self._bytes)
                await asyncio.sleep(_AGAIN_S)
            except Exception as error:  # a fault that one message causes must not stop all others
                log.exception("fleet_ingest_failed", messages=len(batch))
                if len(batch) == 1:
                    await self._drop(batch[0], error)
                    return
                for one in batch:
                    await self._store([one])
                return
        await self._tell(done)

    async def _drop(self, arrived: Arrived, error: Exception) -> None:
        """What can never be stored, as a NUL in PostgreSQL, is acknowledged; a fault of ours may be mended before it repeats."""
        self._metrics.dropped.labels("failed").inc()
        if isinstance(error, NotStorable):
            uplink = read_uplink(arrived)
            await self._tell(_Batch(received={uplink.uid: [uplink.envelope.id]} if uplink.kept else {}))

    async def _tell(self, done: _Batch) -> None:
        for reason, count in done.dropped.items():
            self._metrics.dropped.labels(reason).inc(count)
        for kind, count in done.kinds.items():
            self._metrics.messages.labels(kind).inc(count)
        for tenant, uplink in done.done:
            for after in self._afters[uplink.kind]:
                try:
                    after(tenant, uplink)
                except Exception:  # a fault concerns one message, never those that come later
                    log.exception("fleet_after_failed", uid=uplink.uid, kind=uplink.kind)
        self._changes.publish(*dict.fromkeys(done.changes))
        for uid, ids in done.received.items():
            try:
                await self._acknowledge(uid, ids)
            except EdgewiseError as error:
                log.debug("fleet_received_not_sent", uid=uid, reason=error.message)

    # --- in the transaction ----------------------------------------------------------------------------------------------

    def _work(self, session: Session, batch: Sequence[Arrived]) -> _Batch:
        result = _Batch()
        uplinks: list[Uplink] = []
        unread: list[UnreadableBody] = []
        for arrived in batch:
            try:
                uplinks.append(read_uplink(arrived))
            except UnreadableBody as error:
                unread.append(error)
            except BadMessage as error:
                result.dropped["malformed"] += 1
                log.info("fleet_message_dropped", topic=arrived.topic[:120], reason=error.message)
        devices = _devices(session, {one.uid for one in uplinks} | {one.uid for one in unread})
        for bad in unread:
            self._refuse(session, result, devices.get(bad.uid), bad)
        known = _known(session, [one.envelope.id for one in uplinks if one.kept])
        for uplink in uplinks:
            device = devices.get(uplink.uid)
            if device is None:
                result.dropped["foreign"] += 1
                self._tell_seldom(uplink.uid, "foreign", f"a device that is not enrolled sends messages: {uplink.uid}")
                continue
            if uplink.kept:
                result.receive(uplink.uid, uplink.envelope.id)
            if uplink.envelope.id not in known:
                try:
                    self._handle(session, result, device, uplink)
                except BadMessage as error:
                    bad = UnreadableBody(error.message, uplink.uid, uplink.kind, uplink.envelope.id)
                    self._refuse(session, result, device, bad)
                    continue
                known.add(uplink.envelope.id)
            result.done.append((device.tenant_id, uplink))
        return result

    def _handle(self, session: Session, result: _Batch, device: Device, uplink: Uplink) -> None:
        result.kinds[uplink.kind] += 1
        for handler in self._handlers[uplink.kind]:
            result.changes += handler(session, device, uplink)
        by_device = not (isinstance(uplink.body, Live) and uplink.body.state == "offline")  # that may be its will
        if by_device and not uplink.retained:
            device.seen_at = max(uplink.at, device.seen_at or 0.0)
        if uplink.kept:
            until = uplink.at + _KEEP_S.get(uplink.kind, _KEEP_OTHERS_S)
            session.add(Arrival(id=uplink.envelope.id, uid=uplink.uid, until=until))

    def _refuse(self, session: Session, result: _Batch, device: Device | None, bad: UnreadableBody) -> None:
        result.dropped["malformed" if device is not None else "foreign"] += 1
        log.info("fleet_message_dropped", uid=bad.uid, kind=bad.kind, reason=bad.message)
        if device is None:
            return
        if bad.kind not in UNKEPT:
            result.receive(bad.uid, bad.id)
        if self._tell_seldom(bad.uid, bad.kind, bad.message):
            message = f"A message of the kind {bad.kind!r} was dropped: {bad.message}"
            note(session, device.tenant_id, "message.dropped", "warning", message, uid=bad.uid, at=self._clock.time())
            result.changes.append(Change(device.tenant_id, "event", bad.uid))

    def _tell_seldom(self, uid: str, reason: str, message: str) -> bool:
        """Whether it is time to tell of it again."""
        now = time.monotonic()
        if now - self._told.get((uid, reason), -_TELL_S) < _TELL_S:
            return False
        if len(self._told) >= _TELLING:
            self._told.clear()
        self._told[uid, reason] = now
        log.warning("fleet_message_dropped", uid=uid, reason=reason, message=message)
        return True


def _devices(session: Session, uids: Collection[str]) -> dict[str, Device]:
    """Those of the devices that belong to a fleet, locked against other writers."""
    found: dict[str, Device] = {}
    for some in chunks(sorted(uids)):
        rows = session.scalars(
            select(Device)
            .where(Device.uid.in_(some), Device.retired_at.is_(None))
            .order_by(Device.uid)
            .with_for_update(key_share=True)
        )
        found.update((row.uid, row) for row in rows)
    return found


def _known(session: Session, ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for some in chunks(ids):
        found.update(session.scalars(select(Arrival.id).where(Arrival.id.in_(some))))
    return found
