"""Sends commands that are due, again until they are acknowledged, and ends those that are too late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.commands.acks import add_step
from edgewise.cloud.fleet.commands.agenda import ABSENT_S, Agenda
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import CommandRow, Device
from edgewise.cloud.fleet.downlink import Downlink
from edgewise.cloud.fleet.metrics import FleetMetrics
from edgewise.cloud.fleet.owned import chunks
from edgewise.cloud.fleet.presence import PRESENT
from edgewise.cloud.fleet.syncs import Synced
from edgewise.core.clock import Clock
from edgewise.core.errors import EdgewiseError, LinkLost, StorageError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.wire.fleet import ENDED, Ack, Command, CommandState, Control

log = get_logger(__name__)

_BATCH = 200
_AGAIN_S = 1.0
_IDLE_S = 5.0
_OPEN = ("queued", "sent", "accepted", "running")


@dataclass(frozen=True, slots=True)
class _End:
    """How the service itself ends a command, and in which states it may."""

    state: CommandState
    code: str
    reason: str
    states: tuple[str, ...]


EXPIRED = _End("expired", "expired", "The device did not accept it in time.", ("queued", "sent"))
SILENT = _End("timed-out", "no_word", "The device did not say in time what became of it.", ("accepted", "running"))
LOST = _End(
    "failed",
    "lost",
    "The device no longer knows it: its disk was replaced, or its state removed.",
    ("accepted", "running"),
)


class Sender:
    """One task. `answer` is for syncs.

    Args:
        on_end: Told of commands that ended here, not on their device.
    """

    def __init__(
        self,
        db: FleetDatabase,
        changes: Changes,
        downlink: Downlink,
        agenda: Agenda,
        metrics: FleetMetrics,
        clock: Clock,
        on_end: Callable[[str, Ack], None],
    ) -> None:
        self._db, self._changes, self._downlink, self._metrics = db, changes, downlink, metrics
        self._agenda = agenda
        self._clock = clock
        self._on_end = on_end
        self._wake = asyncio.Event()
        self._unsure = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="fleet-commands")

    async def stop(self) -> None:
        await end_task(self._task)

    def wake(self) -> None:
        """There is something new to do."""
        self._wake.set()

    def unsure(self) -> None:
        """The database failed while it wrote a command: it may be there all the same."""
        self._unsure = True
        self._wake.set()

    async def recover(self) -> None:
        """Take up what is open and not known here: left by an earlier process, or by a write of which the end was not heard."""
        query = select(CommandRow).where(CommandRow.state.in_(_OPEN))
        rows = await self._db.read(lambda session: list(session.scalars(query)))
        for row in rows:
            if row.id not in self._agenda:
                self._agenda.add(row, self._clock.monotonic(), self._clock.time())

    async def step(self) -> None:
        """Do what is due now."""
        if self._unsure:
            self._unsure = False
            try:
                await self.recover()
            except StorageError:
                self._unsure = True
                raise
        now = self._clock.monotonic()
        await self.end(self._agenda.late(now, accepted=False), EXPIRED)
        if silent := self._agenda.late(now, accepted=True):
            await self._give_up(silent)
        for some in chunks(self._agenda.due(now)):
            await self._send(some)

    async def answer(self, batch: Mapping[str, Synced]) -> None:
        """Devices have synced: what they have not accepted is sent again; what they no longer know has failed."""
        now = self._clock.monotonic()
        lost: list[str] = []
        for uid, one in batch.items():
            for command in self._agenda.of(uid):
                if not command.accepted:
                    self._agenda.later([command.id], now)
                elif _unknown(command.id, command.place, one):
                    lost.append(command.id)
        await self.end(lost, LOST)
        await self._cancel_again(batch)
        self.wake()

    async def linked(self) -> None:
        """The link to the broker is there again: ends that were asked for meanwhile are asked for again."""

        def work(session: Session) -> list[tuple[str, str]]:
            where = (CommandRow.cancel_at.is_not(None), CommandRow.state.in_(("accepted", "running")))
            return [(uid, id) for uid, id in session.execute(select(CommandRow.uid, CommandRow.id).where(*where))]

        for uid, id in await self._db.read(work):
            await self._downlink.control(uid, id, Control(do="cancel"))

    async def end(self, ids: Sequence[str], how: _End) -> None:
        """End commands here, unless they have moved on."""
        for some in chunks(ids):
            ended, moved = await self._db.write(partial(_end, ids=some, how=how, now=self._clock.time()))
            for id in set(some) - moved:
                self._agenda.ended(id)
            for change in ended:
                self._on_end(change.id, Ack(state=how.state, code=how.code, reason=how.reason))
            self._agenda.later(moved, self._clock.monotonic() + _IDLE_S)
            self._changes.publish(*ended)

    async def _run(self) -> None:
        while True:
            upcoming = self._agenda.next()
            wait = _IDLE_S if upcoming is None else min(_IDLE_S, max(0.0, upcoming - self._clock.monotonic()))
            timer = asyncio.get_running_loop().call_later(wait, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            self._wake.clear()
            try:
                await self.step()
            except LinkLost as error:
                log.debug("fleet_commands_wait", reason=error.message)
                await self._clock.sleep(_AGAIN_S)
            except StorageError as error:
                log.error("fleet_commands_wait", reason=error.message)
                await self._clock.sleep(_AGAIN_S)
            except Exception:  # a fault must not leave all commands unsent
                log.exception("fleet_commands_failed")
                await self._clock.sleep(_AGAIN_S)

    async def _send(self, ids: Sequence[str]) -> None:
        due = await self._db.read(lambda session: _load(session, ids))
        found = {row.id for row, _ in due}
        self._agenda.settled([id for id in ids if id not in found])
        absent = [row.id for row, state in due if state not in PRESENT]
        self._agenda.later(absent, self._clock.monotonic() + ABSENT_S)
        sent: list[str] = []
        try:
            for row, state in due:
                if state in PRESENT:
                    await self._hand_over(row)
                    sent.append(row.id)
        finally:
            if sent:
                for id in sent:
                    self._agenda.sent(id, self._clock.monotonic())
                now = self._clock.time()
                self._changes.publish(*await self._db.write(lambda session: _note_sent(session, sent, now)))

    async def _hand_over(self, row: CommandRow) -> None:
        left = self._agenda.left(row.id, self._clock.monotonic())
        if row.cancel_at is not None:
            await self._downlink.control(row.uid, row.id, Control(do="cancel"))
            return
        command = Command(op=row.op, args=row.args, total_s=row.total_s, step_s=row.step_s)
        try:
            await self._downlink.command(
                row.uid, row.id, command, None if left is None else max(1, int(left * 1000)), row.key
            )
        except LinkLost:
            raise
        except EdgewiseError as error:  # this one cannot be sent, others can
            reason = f"It cannot be sent: {error.message}"
            await self.end([row.id], _End("rejected", error.code, reason, ("queued", "sent")))
            return
        self._metrics.commands.labels("first" if row.tries == 0 else "again").inc()

    async def _give_up(self, ids: Sequence[str]) -> None:
        """Only on a device that is there: another may have ended it long ago and says so when it is back."""
        due = await self._db.read(lambda session: _load(session, ids, _OPEN))
        there = [row for row, state in due if state in PRESENT]
        await self.end([row.id for row in there], SILENT)
        self._agenda.later(ids, self._clock.monotonic() + ABSENT_S)
        for row in there:
            await self._downlink.control(row.uid, row.id, Control(do="cancel"))

    async def _cancel_again(self, batch: Mapping[str, Synced]) -> None:
        """Ends that were asked for while the device was away."""
        uids = [uid for uid, one in batch.items() if one.sync.open]

        def work(session: Session) -> list[tuple[str, str]]:
            query = select(CommandRow.uid, CommandRow.id).where(CommandRow.cancel_at.is_not(None))
            rows: list[tuple[str, str]] = []
            for some in chunks(uids):
                where = (CommandRow.uid.in_(some), CommandRow.state.in_(("accepted", "running")))
                rows += [(uid, id) for uid, id in session.execute(query.where(*where))]
            return rows

        for uid, id in await self._db.read(work) if uids else ():
            if id in batch[uid].sync.open:
                await self._downlink.control(uid, id, Control(do="cancel"))


def _unknown(id: str, place: tuple[int, int], one: Synced) -> bool:
    """Whether a device that had accepted a command knows neither it nor an end of it that is still on its way."""
    return id not in one.sync.open and not one.sync.outbox.get("result") and place < one.place


def _load(
    session: Session, ids: Sequence[str], states: Sequence[str] = ("queued", "sent")
) -> list[tuple[CommandRow, str]]:
    query = (
        select(CommandRow, Device.state)
        .join(Device, Device.uid == CommandRow.uid)
        .where(CommandRow.id.in_(ids), CommandRow.state.in_(states))
        .order_by(CommandRow.id)
    )
    return [(row, state) for row, state in session.execute(query)]


def _note_sent(session: Session, ids: Sequence[str], now: float) -> list[Change]:
    changes = []
    for row in _locked(session, ids, ("queued", "sent", "accepted", "running", *ENDED)):
        row.tries, row.sent_at = row.tries + 1, now
        if row.state == "queued":
            row.state, row.changed_at = "sent", now
            add_step(session, row.id, "sent", now)
            changes.append(Change(row.tenant_id, "command", row.id))
    return changes


def _end(session: Session, ids: Sequence[str], how: _End, now: float) -> tuple[list[Change], set[str]]:
    """What was ended, and which have moved on to another state in which they are open."""
    changes, moved = [], set()
    for row in _locked(session, ids, _OPEN):
        if row.state not in how.states:
            moved.add(row.id)
            continue
        row.state, row.code, row.reason, row.changed_at = how.state, how.code, how.reason, now
        add_step(session, row.id, how.state, now, reason=how.reason)
        changes.append(Change(row.tenant_id, "command", row.id))
    return changes, moved


def _locked(session: Session, ids: Sequence[str], states: Sequence[str]) -> list[Any]:
    query = select(CommandRow).where(CommandRow.id.in_(ids), CommandRow.state.in_(states)).order_by(CommandRow.id)
    return list(session.scalars(query.with_for_update(key_share=True)))
