"""Commands to devices, as people and programs use them; implements `fleet.services.Commands`."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.audit import record
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.commands.acks import add_step, receive_ack, receive_log
from edgewise.cloud.fleet.commands.agenda import Agenda
from edgewise.cloud.fleet.commands.sender import Sender
from edgewise.cloud.fleet.commands.streams import CREDIT, Streams
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import CommandLog, CommandRow, CommandStep
from edgewise.cloud.fleet.downlink import Downlink
from edgewise.cloud.fleet.ingest import Ingest
from edgewise.cloud.fleet.metrics import FleetMetrics
from edgewise.cloud.fleet.owned import chunks, find_devices
from edgewise.cloud.fleet.pages import check_limit
from edgewise.cloud.fleet.syncs import Syncs
from edgewise.cloud.fleet.uplink import Uplink
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError, InvalidRequest, KeyReused, NotFound, StorageError
from edgewise.core.log import get_logger
from edgewise.wire.envelope import new_ulid
from edgewise.wire.fleet import ENDED, Ack, Control
from edgewise.wire.mqtt.tasks import Tasks

log = get_logger(__name__)

MAX_DEVICES = 10_000
MAX_ARGS = 256 * 1024
SHORT_TTL_S, LONG_TTL_S = 300.0, 86_400.0
"""Time to acceptance where none is given: of what is asked while somebody waits, and of all else."""
_SHORT = ("ping", "infer", "logs", "diagnose")
_OP = re.compile(r"[a-z]{1,24}(\.[a-z]{1,24})?")
_NAMED = 100  # devices that a line of the audit log names


class CommandService:
    """`register`, `start`; `stop` when done."""

    def __init__(
        self,
        db: FleetDatabase,
        changes: Changes,
        downlink: Downlink,
        metrics: FleetMetrics,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._db, self._changes, self._downlink = db, changes, downlink
        self._clock = clock or SystemClock()
        self._agenda = Agenda()
        self._tasks = Tasks()
        self._streams = Streams(self._grant)
        self._sender = Sender(db, changes, downlink, self._agenda, metrics, self._clock, self._streams.ended)

    def register(self, ingest: Ingest, syncs: Syncs) -> None:
        ingest.on("ack", receive_ack, after=self._heard)
        ingest.on("log", receive_log)
        syncs.add(self._sender.answer)

    async def start(self) -> None:
        await self._sender.recover()
        self._sender.start()

    async def stop(self) -> None:
        await self._sender.stop()
        await self._tasks.end()

    async def linked(self) -> None:
        """The link to the broker is there again. Credit that was given meanwhile is lost; too much of it does no harm."""
        self._sender.wake()
        await self._sender.linked()
        for one in self._agenda.answering():
            self._grant(one.uid, one.id, CREDIT)

    # --- sending ---------------------------------------------------------------------------------------------------------

    async def send(
        self,
        actor: Actor,
        uids: Sequence[str],
        op: str,
        args: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        ttl_s: float | None = None,
        total_s: float | None = None,
        step_s: float | None = None,
    ) -> Sequence[views.CommandView]:
        """One command to each device, in the order of `uids`; with `key`, a repeat finds the command that is there.

        Raises:
            InvalidRequest: An argument is malformed or beyond its limit.
            NotFound: A device is not there.
            KeyReused: The key came with another command before.
        """
        actor.need("operator")
        wanted = list(dict.fromkeys(uids))
        arguments = dict(args or {})
        _check(wanted, op, arguments, {"ttl_s": ttl_s, "total_s": total_s, "step_s": step_s})
        if ttl_s is None:
            ttl_s = SHORT_TTL_S if op in _SHORT else LONG_TTL_S
        now = self._clock.time()
        batch_id = new_ulid() if len(wanted) > 1 else None
        fixed = {"batch_id": batch_id, "key": key, "op": op, "args": arguments, "author": actor.name}
        times = {"ttl_s": ttl_s, "total_s": total_s, "step_s": step_s, "created_at": now, "changed_at": now}

        def work(session: Session) -> tuple[list[CommandRow], list[CommandRow]]:
            devices = find_devices(session, actor, wanted)
            there = {} if key is None else _with_key(session, wanted, key)
            fresh = [
                CommandRow(
                    id=new_ulid(), tenant_id=actor.tenant, uid=device.uid, state="queued", tries=0, **fixed, **times
                )
                for device in devices
                if device.uid not in there
            ]
            for row in there.values():
                _same(row, op, arguments)
            session.add_all(fresh)
            session.flush()
            for row in fresh:
                add_step(session, row.id, "queued", now)
            if fresh:
                _record_send(session, actor, fresh, op, arguments)
            rows = there | {row.uid: row for row in fresh}
            return [rows[uid] for uid in wanted], fresh

        try:
            rows, fresh = await self._db.write(work)
        except StorageError:
            self._sender.unsure()
            raise
        for row in fresh:
            self._agenda.add(row, self._clock.monotonic(), now)
        self._changes.publish(*(Change(actor.tenant, "command", row.id) for row in fresh))
        self._sender.wake()
        return [views.CommandView.model_validate(row) for row in rows]

    async def cancel(self, actor: Actor, command_id: str) -> views.CommandView:
        """Ask for an end. One that was never sent has ended at once; else the device says what really happened."""
        actor.need("operator")
        now = self._clock.time()

        def work(session: Session) -> CommandRow:
            row = _find(session, actor, command_id, lock=True)
            if row.state in ENDED:
                return row
            row.cancel_at = row.cancel_at or now
            if row.state == "queued" and row.tries == 0:
                row.state, row.changed_at, row.reason = "cancelled", now, f"by {actor.name}, before it was sent"
                add_step(session, row.id, "cancelled", now, reason=row.reason)
            else:
                add_step(session, row.id, row.state, now, step="cancel", reason=f"asked by {actor.name}")
            record(session, actor, "command.cancel", row.id, after={"uid": row.uid, "op": row.op, "state": row.state})
            return row

        row = await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "command", row.id))
        if row.state in ENDED:
            self._agenda.ended(row.id)
            self._streams.ended(row.id, _last(views.CommandView.model_validate(row)))
        else:
            await self._ask_end(row.uid, row.id)
        return views.CommandView.model_validate(row)

    # --- reading ---------------------------------------------------------------------------------------------------------

    async def command(self, actor: Actor, command_id: str) -> views.CommandView:
        """One, with its timeline."""

        def work(session: Session) -> views.CommandView:
            row = _find(session, actor, command_id)
            query = select(CommandStep).where(CommandStep.command_id == row.id).order_by(CommandStep.id)
            steps = tuple(views.StepView.model_validate(step) for step in session.scalars(query))
            return views.CommandView.model_validate(row).model_copy(update={"steps": steps})

        return await self._db.read(work)

    async def commands(
        self,
        actor: Actor,
        *,
        uid: str | None = None,
        batch_id: str | None = None,
        state: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> views.Page[views.CommandView]:
        """The latest first."""
        check_limit(limit)
        where = [CommandRow.tenant_id == actor.tenant]
        for column, value in ((CommandRow.uid, uid), (CommandRow.batch_id, batch_id), (CommandRow.state, state)):
            if value is not None:
                where.append(column == value)

        def work(session: Session) -> views.Page[views.CommandView]:
            total = session.scalar(select(func.count()).select_from(CommandRow).where(*where)) or 0
            further = [*where, CommandRow.id < after] if after is not None else where
            query = select(CommandRow).where(*further).order_by(CommandRow.id.desc()).limit(limit + 1)
            rows = list(session.scalars(query))
            items = tuple(views.CommandView.model_validate(row) for row in rows[:limit])
            return views.Page(items=items, total=total, after=items[-1].id if len(rows) > limit else None)

        return await self._db.read(work)

    async def stream(self, actor: Actor, command_id: str) -> AsyncIterator[Ack]:
        """Acknowledgements as they come, until the command has ended; reading lets further pieces come.

        A reader that comes late gets what comes from then on; the result at the end is whole.
        """
        with self._streams.listen(command_id) as listener:
            view = await self.command(actor, command_id)
            if view.state in ENDED:
                yield _last(view)
                return
            while True:
                ack = await listener.next()
                yield ack
                if ack.state in ENDED:
                    return

    async def log(self, actor: Actor, command_id: str) -> Sequence[str]:
        """Lines that a `logs` command has brought, in order."""

        def work(session: Session) -> list[str]:
            row = _find(session, actor, command_id)
            query = select(CommandLog.lines).where(CommandLog.command_id == row.id).order_by(CommandLog.part)
            return [line for lines in session.scalars(query) for line in lines]

        return await self._db.read(work)

    # --- what devices say ------------------------------------------------------------------------------------------------

    def _heard(self, tenant: str, uplink: Uplink) -> None:
        """After an acknowledgement was stored."""
        ack, id = uplink.read(Ack), uplink.key
        if id not in self._agenda:
            if ack.state not in ENDED:
                self._tasks.spawn(self._stop_late(tenant, uplink.uid, id), "late-command")
            return
        if ack.state in ENDED:
            self._agenda.ended(id)
        else:
            self._agenda.accepted(id, uplink.envelope.place, self._clock.monotonic())
        self._streams.publish(uplink.uid, id, ack)

    async def _stop_late(self, tenant: str, uid: str, id: str) -> None:
        """A device works on what has ended here: expired, or given up. It is asked to stop."""
        query = select(CommandRow.state).where(
            CommandRow.id == id, CommandRow.tenant_id == tenant, CommandRow.uid == uid
        )
        if await self._db.read(lambda session: session.scalar(query)) in ENDED:
            await self._ask_end(uid, id)

    async def _ask_end(self, uid: str, id: str) -> None:
        try:
            await self._downlink.control(uid, id, Control(do="cancel"))
        except EdgewiseError as error:
            log.info("fleet_cancel_waits", uid=uid, command=id, reason=error.message)  # for the device's next sync

    def _grant(self, uid: str, id: str, credit: int) -> None:
        self._tasks.spawn(self._downlink.control(uid, id, Control(do="grant", credit=credit)), "grant")


def _check(uids: Sequence[str], op: str, args: Mapping[str, Any], times: Mapping[str, float | None]) -> None:
    if not 1 <= len(uids) <= MAX_DEVICES:
        raise InvalidRequest(f"uids: {len(uids)} devices; from 1 to {MAX_DEVICES} are possible.", param="uids")
    if _OP.fullmatch(op) is None:
        raise InvalidRequest(
            f"op: {op[:60]!r} is no command: lower-case letters, as `ping` or `model.load`.", param="op"
        )
    try:
        size = len(json.dumps(args, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"args: they are no JSON: {error}", param="args") from error
    if size > MAX_ARGS:
        raise InvalidRequest(f"args: they have {size} bytes, at most {MAX_ARGS} are possible.", param="args")
    for name, value in times.items():
        if value is not None and not 0 < value <= 366 * 86_400:
            raise InvalidRequest(f"{name}: {value} s; it must be above 0 and at most a year.", param=name)


def _record_send(session: Session, actor: Actor, rows: Sequence[CommandRow], op: str, args: Mapping[str, Any]) -> None:
    """What people write to a model is theirs: of `infer` only the names of the arguments are kept."""
    target = rows[0].batch_id or rows[0].id
    kept = sorted(args) if op == "infer" else dict(args)
    named = [row.uid for row in rows[:_NAMED]]
    record(session, actor, "command.send", target, after={"op": op, "args": kept, "devices": len(rows), "uids": named})


def _with_key(session: Session, uids: Sequence[str], key: str) -> dict[str, CommandRow]:
    found: dict[str, CommandRow] = {}
    for some in chunks(uids):
        rows = session.scalars(select(CommandRow).where(CommandRow.uid.in_(some), CommandRow.key == key))
        found.update((row.uid, row) for row in rows)
    return found


def _same(row: CommandRow, op: str, args: Mapping[str, Any]) -> None:
    if row.op != op or row.args != args:
        raise KeyReused(f"The key {row.key!r} came with another command to {row.uid} before.", param="key")


def _find(session: Session, actor: Actor, command_id: str, *, lock: bool = False) -> CommandRow:
    query = select(CommandRow).where(CommandRow.id == command_id, CommandRow.tenant_id == actor.tenant)
    row = session.scalars(query.with_for_update(key_share=True) if lock else query).first()
    if row is None:
        raise NotFound(f"There is no command {command_id[:32]!r} in this fleet.", param="command_id")
    return row


def _last(view: views.CommandView) -> Ack:
    return Ack(
        state=view.state,
        step=view.step,
        percent=view.percent,
        code=view.code,
        reason=view.reason,
        retryable=view.retryable,
        result=view.result,
    )
