"""Sends rows until the fleet says that it has them: a window for each class, what stays unanswered again after growing pauses.

Nothing is sent for the broker's sake: while the fleet says that it is away, telemetry and logs wait here, and results are not
repeated often. A new connection begins with the oldest row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgewise.core.clock import Clock
from edgewise.core.errors import EdgewiseError, LinkLost, PayloadTooLarge
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.edge.agent.moments import Moments
from edgewise.edge.agent.uplink.budget import Budget
from edgewise.edge.agent.uplink.rows import CLASSES, Row, RowClass, Rows
from edgewise.edge.agent.waker import Waker
from edgewise.wire.fleet import HostLive
from edgewise.wire.messages import Message
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)

WINDOW = 32
"""Rows of a class that may be unacknowledged."""
PAUSES_S = (5.0, 15.0, 60.0, 300.0)
"""Until what is unacknowledged is sent again; the last one goes on."""
_BULK: frozenset[RowClass] = frozenset({"telemetry", "log"})
_LOOK_S = 30.0
_FAULT_S = 5.0


@dataclass(slots=True)
class _Lane:
    """What of a class is on its way."""

    sent: dict[int, str] = field(default_factory=dict)  # number -> id
    last: int = 0
    tries: int = 0
    at: float = 0.0

    def forget(self) -> None:
        self.sent.clear()
        self.last = self.tries = 0


class Sender:
    """Args:
    link: Somebody else starts and stops it, and calls `link_up`.
    pauses_s: See `PAUSES_S`.
    """

    def __init__(
        self,
        link: Link,
        rows: Rows,
        budget: Budget,
        moments: Moments,
        clock: Clock,
        *,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._link = link
        self._rows = rows
        self._budget = budget
        self._moments = moments
        self._clock = clock
        self._pauses_s = pauses_s
        self._lanes: dict[RowClass, _Lane] = {kind: _Lane() for kind in CLASSES}
        self._waker = Waker()
        self._task: asyncio.Task[None] | None = None
        self._saved = 0
        self.host: HostLive | None = None
        """What the fleet said of itself last; None if it never did."""

    def __repr__(self) -> str:
        waiting = {kind: len(lane.sent) for kind, lane in self._lanes.items() if lane.sent}
        return f"Sender(unacknowledged={waiting}, host={self.host})"

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="agent-uplink")

    async def stop(self) -> None:
        await end_task(self._task)

    def wake(self) -> None:
        """There is a new row."""
        self._waker.wake()

    def again(self) -> None:
        """Somebody asked for a result that is on its way: it may be lost."""
        self._lanes["result"].forget()
        self._waker.wake()

    def link_up(self) -> None:
        """A new connection stands: what was on its way may be lost."""
        for lane in self._lanes.values():
            lane.forget()
        self._waker.wake()

    def host_said(self, host: HostLive) -> None:
        """The fleet has come or gone; one that comes is sent everything at once."""
        came = host.state == "online" and (self.host is None or self.host.state != "online")
        self.host = host
        if came:
            self.link_up()

    @property
    def host_away(self) -> bool:
        """The fleet said so; one that says nothing is taken to be there."""
        return self.host is not None and self.host.state == "offline"

    async def received(self, ids: Sequence[str]) -> None:
        """The fleet has these rows.

        Raises:
            StorageError: The disk refuses; they are sent again, and received again.
        """
        await self._rows.received(ids)
        gone = set(ids)
        for lane in self._lanes.values():
            arrived = [number for number, id in lane.sent.items() if id in gone]
            for number in arrived:
                del lane.sent[number]
            if arrived:
                lane.tries = 0
                lane.at = self._clock.monotonic()
        self._waker.wake()

    # --- the loop --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            pause = _LOOK_S
            try:
                if self._link.connected:
                    pause = await self._look()
            except LinkLost:
                pause = _LOOK_S  # `link_up` wakes it
            except EdgewiseError as error:
                log.warning("uplink_waits", reason=error.message)
                pause = _FAULT_S
            except Exception:  # outermost frame of a task; the uplink must not stand still
                log.exception("uplink_broke")
                pause = _FAULT_S
            await self._waker.wait(pause)

    async def _look(self) -> float:
        """Send what may be sent now; seconds until it is worth looking again."""
        now = self._clock.monotonic()
        pause = _LOOK_S
        for kind in CLASSES:
            if kind in _BULK and self.host_away:
                continue
            lane = self._lanes[kind]
            if lane.sent and now - lane.at >= self._patience(lane):
                lane.tries += 1
                lane.at = now
                rows = await self._rows.get(lane.sent)
                lane.sent = {row.number: row.id for row in rows}  # without those that were thinned out meanwhile
                await self._send(kind, lane, rows)
            await self._fill(kind, lane)
            if lane.sent:
                pause = min(pause, max(0.05, lane.at + self._patience(lane) - now))
        if self._budget.spent != self._saved:
            await self._budget.save()
            self._saved = self._budget.spent
        return pause

    def _patience(self, lane: _Lane) -> float:
        if self.host_away:
            return self._pauses_s[-1]
        return self._pauses_s[min(lane.tries, len(self._pauses_s) - 1)]

    async def _fill(self, kind: RowClass, lane: _Lane) -> None:
        """Rows that were not sent yet, as far as the window has room. With nothing acknowledged at all, none is added."""
        room = WINDOW - len(lane.sent) if lane.tries == 0 else 0
        if room <= 0:
            return
        rows = await self._rows.next(kind, lane.last, room)
        if rows and not lane.sent:
            lane.at = self._clock.monotonic()
        await self._send(kind, lane, rows)

    async def _send(self, kind: RowClass, lane: _Lane, rows: Sequence[Row]) -> None:
        for row in rows:
            if not self._budget.allows(kind, row.bytes):
                return  # the rest waits for tomorrow; `last` stays before it
            envelope = self._link.sealer.seal(Message.model_validate(self._told(row)), id=row.id, re=row.re)
            lane.sent[row.number] = row.id
            lane.last = max(lane.last, row.number)
            try:
                size = await self._link.send(row.topic, envelope)
            except PayloadTooLarge as error:
                log.error("uplink_row_too_large", row=row.id, bytes=row.bytes, reason=error.message)
                await self._rows.received([row.id])
                del lane.sent[row.number]
                continue
            self._budget.spend(kind, size)

    def _told(self, row: Row) -> dict[str, object]:
        """The body, with the age of what it tells as it is now."""
        if "age_ms" not in row.body:
            return row.body
        return {**row.body, "age_ms": int(row.body["age_ms"] + 1000 * self._moments.age_s(row.moment))}
