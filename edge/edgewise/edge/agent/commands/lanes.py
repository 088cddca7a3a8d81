"""Does commands: in order within a lane, lanes beside each other, and each to an end that is on disk.

An operation may act only after it was written down that it has begun. After a kill, one that may be repeated is begun again, one
that knows how goes on, and any other has failed: nothing is done twice unseen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, get_args

from edgewise.api.errors import internal_error
from edgewise.core.clock import Clock
from edgewise.core.errors import Cancelled, EdgewiseError, StorageError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.edge.agent.commands.call import Running
from edgewise.edge.agent.commands.inbox import Inbox
from edgewise.edge.agent.commands.operation import Interrupted, Operation
from edgewise.edge.agent.commands.pieces import Pieces
from edgewise.edge.agent.commands.record import Lane, Record
from edgewise.edge.agent.moments import Moments
from edgewise.edge.agent.waker import Waker
from edgewise.wire.fleet import Ack, CommandState, Control
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)

LANES: tuple[Lane, ...] = get_args(Lane)
WIDTH: Mapping[Lane, int] = {"control": 1, "update": 1, "infer": 8}
"""Commands of a lane at once."""
MAX_RESULT = 768 * 1024
"""Bytes of a result that is told as it is."""
_RETRY_S = 5.0  # after a fault of the disk
_LOOK_S = 60.0
_GRACE_S = 30.0  # for what was cancelled to end

Tell = Callable[[str, Ack], Awaitable[None]]


class Lanes:
    """Args:
    operations: By their names.
    tell: Sends an ack that is not kept.
    on_end: Called when an end waits in the uplink; told the command and how it ended.
    on_full: The disk refuses what must be written: make room.
    """

    def __init__(
        self,
        inbox: Inbox,
        operations: Mapping[str, Operation],
        link: Link,
        moments: Moments,
        clock: Clock,
        *,
        tell: Tell,
        on_end: Callable[[Record, Ack], None],
        on_full: Callable[[], Awaitable[None]],
    ) -> None:
        self._inbox = inbox
        self._operations = operations
        self._link = link
        self._moments = moments
        self._clock = clock
        self._tell = tell
        self._on_end = on_end
        self._on_full = on_full
        self._wakers = {lane: Waker() for lane in LANES}
        self._running: dict[str, tuple[Lane, asyncio.Task[None]]] = {}
        self._calls: dict[str, Running] = {}
        self._cancelled: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def __repr__(self) -> str:
        return f"Lanes(running={sorted(self._calls)})"

    @property
    def alive(self) -> bool:
        """Every lane has a task that looks after it."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(lane), name=f"agent-{lane}") for lane in LANES]

    async def stop(self) -> None:
        """End at once; what was under way is found at the next start as after a kill."""
        self._stopping = True
        await end_task(*self._tasks, *(task for _, task in self._running.values()))

    def wake(self, lane: Lane) -> None:
        """There is a command."""
        self._wakers[lane].wake()

    async def control(self, id: str, control: Control) -> None:
        """Cancel, extend, or grant credit. What has ended or is not known stays as it is.

        Raises:
            StorageError: The disk refuses; nothing is changed.
        """
        call = self._calls.get(id)
        if control.do == "grant":
            if call is not None:
                call.pieces.grant(control.credit)
        elif control.do == "extend":
            if await self._inbox.extend(id, control.extend_s) and call is not None:
                call.extend(control.extend_s)
        elif await self._inbox.cancel(id):
            await self._cancel(id)

    async def _cancel(self, id: str) -> None:
        if id in self._running:
            self._cancelled.add(id)
            if id in self._calls:
                self._calls[id].cancel()
            return
        ack = Ack(state="cancelled", reason="It was cancelled before it had begun.")
        record = await self._inbox.find(id)
        if record is not None and not record.begun and await self._inbox.end(id, ack):
            self._on_end(record, ack)

    # --- one lane --------------------------------------------------------------------------------------------------------

    async def _keep(self, lane: Lane) -> None:
        while not self._stopping:
            try:
                await self._fill(lane)
            except EdgewiseError as error:
                log.warning("commands_wait", lane=lane, reason=error.message)
                await self._clock.sleep(_RETRY_S)
                continue
            except Exception:  # outermost frame of a task; the lane must not stand still
                log.exception("lane_broke", lane=lane)
                await self._clock.sleep(_RETRY_S)
                continue
            await self._wakers[lane].wait(_LOOK_S)

    async def _fill(self, lane: Lane) -> None:
        while sum(one == lane for one, _ in self._running.values()) < WIDTH[lane]:
            record = await self._inbox.next(lane, [id for id, (one, _) in self._running.items() if one == lane])
            if record is None:
                return
            task = asyncio.create_task(self._do(record), name=f"command-{record.id}")
            self._running[record.id] = (lane, task)
            task.add_done_callback(partial(self._done, record.id, lane))

    def _done(self, id: str, lane: Lane, _: asyncio.Task[None]) -> None:
        del self._running[id]
        self._cancelled.discard(id)
        self._wakers[lane].wake()

    # --- one command -----------------------------------------------------------------------------------------------------

    async def _do(self, record: Record) -> None:
        try:
            ack = await self._outcome(record)
            if ack is None:
                return
        except Exception as error:  # outermost frame of a task; the command must come to an end
            log.exception("command_broke", command=record.id, op=record.op)
            ack = failure(internal_error(error))
        await self._surely(partial(self._inbox.end, record.id, ack))
        log.info("command_ended", command=record.id, op=record.op, state=ack.state, code=ack.code or None)
        self._on_end(record, ack)

    async def _outcome(self, record: Record) -> Ack | None:
        """How it ends; None if it has ended before it could begin."""
        operation = self._operations.get(record.op)
        if operation is None:  # of another version of this software, which accepted it
            return Ack(state="failed", code="unknown_op", reason=f"This release has no operation '{record.op}'.")
        left_s = record.total_s - self._moments.age_s(record.moment)
        if record.cancelled:
            return Ack(state="cancelled", reason="It was cancelled before it had begun." * (not record.begun))
        if left_s <= 0:
            return Ack(state="timed-out", reason="The time for the whole command was over before it was its turn.")
        work = operation.run
        if record.begun and not operation.repeatable:
            if operation.resume is None:
                return failure(Interrupted("The service was ended in the middle of it; it was not begun again."))
            work = operation.resume
        if not await self._surely(partial(self._inbox.begin, record.id)):
            return None
        return await self._attended(record, work, left_s)

    async def _attended(
        self, record: Record, work: Callable[[Running], Awaitable[dict[str, Any]]], left_s: float
    ) -> Ack:
        pieces = Pieces(self._link, record.id)
        call = Running(record, self._inbox, pieces, self._clock, left_s=left_s, tell=self._tell)
        self._calls[record.id] = call
        if record.id in self._cancelled:
            call.cancel()
        task = asyncio.ensure_future(_as_task(work, call))
        try:
            await self._tell(record.id, Ack(state="running"))
            why = await call.attend(task)
            if why is not None:
                task.cancel()
                await asyncio.wait({task}, timeout=_GRACE_S)
        finally:
            task.cancel()
            if not task.done():
                await asyncio.wait({task}, timeout=_GRACE_S)
            del self._calls[record.id]
        return _told(task, why)

    async def _surely(self, work: Callable[[], Awaitable[bool]]) -> bool:
        """Write something down, however long the disk refuses."""
        try:
            return await work()
        except StorageError:
            await self._on_full()
        while True:
            try:
                return await work()
            except StorageError as error:
                log.warning("commands_wait", reason=error.message)
                await self._on_full()
                await self._clock.sleep(_RETRY_S)


async def _as_task(work: Callable[[Running], Awaitable[dict[str, Any]]], call: Running) -> dict[str, Any]:
    return await work(call)


def _success(result: dict[str, Any]) -> Ack:
    """An end must fit a message: a result that does not is left out, and it is said."""
    size = len(json.dumps(result, ensure_ascii=False).encode())
    if size <= MAX_RESULT:
        return Ack(state="succeeded", percent=100.0, result=result)
    reason = f"The result has {size} bytes and is left out: a message holds {MAX_RESULT}. Pieces were streamed."
    return Ack(state="succeeded", percent=100.0, reason=reason, result={"left_out_bytes": size})


def failure(error: EdgewiseError, state: CommandState = "failed") -> Ack:
    """An error of the tree as the end of a command."""
    return Ack(state=state, code=error.code, reason=error.message[:2000], retryable=error.retryable)


def _told(task: asyncio.Task[dict[str, Any]], why: str | None) -> Ack:
    """What really happened: an operation that was done before it could be ended has succeeded."""
    if not task.done():
        log.error("command_does_not_end", task=task.get_name())
    elif not task.cancelled():
        error = task.exception()
        if error is None:
            return _success(task.result())
        if why is None or not isinstance(error, Cancelled):
            if isinstance(error, EdgewiseError):
                return failure(error)
            raise error
    if why == "cancelled":
        return Ack(state="cancelled")
    return Ack(state="timed-out", code="deadline_exceeded", reason=why or "", retryable=True)
