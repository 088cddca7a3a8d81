"""When which command is to be sent, expires, or is given up: kept in memory, read from the database at start.

Deadlines count on this service's monotonic clock, so setting the wall clock neither expires commands nor keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edgewise.cloud.fleet.commands.life import next_try_s
from edgewise.cloud.fleet.db.tables import CommandRow

ABSENT_S = 60.0
"""A command to a device that is not there is looked at again so often; the device's sync comes first as a rule."""
SLACK_S = 300.0
"""What a device may be late with the end of a command that has a time limit."""


@dataclass(slots=True, kw_only=True)
class Open:
    """A command that has not ended.

    Attributes:
        due: When it is to be sent; None once it is accepted, or has ended.
        deadline: When it expires unless it is accepted; once it is, when the device must have ended it. None never.
        place: Of the acknowledgement that counts.
    """

    id: str
    uid: str
    op: str
    tries: int
    accepted: bool
    due: float | None
    deadline: float | None
    total_s: float | None
    place: tuple[int, int]


class Agenda:
    """Times are of the monotonic clock."""

    def __init__(self) -> None:
        self._open: dict[str, Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, id: object) -> bool:
        return id in self._open

    def add(self, row: CommandRow, now: float, wall: float) -> None:
        """A command as the database has it at the wall clock's `wall`."""
        accepted = row.state in ("accepted", "running")
        limit = row.total_s if accepted else row.ttl_s
        since = row.changed_at if accepted else row.created_at
        left = None if limit is None else min(max(0.0, since + limit - wall), limit) + (SLACK_S if accepted else 0.0)
        self._open[row.id] = Open(
            id=row.id,
            uid=row.uid,
            op=row.op,
            tries=row.tries,
            accepted=accepted,
            due=None if accepted else now,
            deadline=None if left is None else now + left,
            total_s=row.total_s,
            place=(row.ep, row.seq),
        )

    def accepted(self, id: str, place: tuple[int, int], now: float) -> None:
        """The device has it on its disk: it is not sent again, and has its time limit from now."""
        one = self._open.get(id)
        if one is None:
            return
        one.place = max(one.place, place)
        if not one.accepted:
            one.accepted, one.due = True, None
            one.deadline = None if one.total_s is None else now + one.total_s + SLACK_S

    def ended(self, id: str) -> None:
        self._open.pop(id, None)

    def sent(self, id: str, now: float) -> None:
        one = self._open.get(id)
        if one is not None and not one.accepted:
            one.tries += 1
            one.due = now + next_try_s(one.tries)

    def later(self, ids: Iterable[str], at: float) -> None:
        """Look at them again at `at`."""
        for id in ids:
            one = self._open.get(id)
            if one is not None:
                if one.accepted:
                    one.deadline = at
                else:
                    one.due = at

    def settled(self, ids: Iterable[str]) -> None:
        """They are no longer to be sent; how they go on is told by `accepted` or `ended`."""
        for id in ids:
            one = self._open.get(id)
            if one is not None:
                one.due = None

    def left(self, id: str, now: float) -> float | None:
        """Seconds in which a command must be accepted; None for ever."""
        one = self._open.get(id)
        return None if one is None or one.accepted or one.deadline is None else one.deadline - now

    def answering(self) -> Iterator[Open]:
        """Those that a device streams an answer to."""
        return (one for one in [*self._open.values()] if one.accepted and one.op == "infer")

    def of(self, uid: str) -> Iterator[Open]:
        return (one for one in [*self._open.values()] if one.uid == uid)

    def due(self, now: float) -> list[str]:
        """To be sent, in the order in which they were asked for: ids are ULIDs."""
        return sorted(one.id for one in self._open.values() if one.due is not None and one.due <= now)

    def late(self, now: float, *, accepted: bool) -> list[str]:
        """Beyond their deadline."""
        return [
            one.id
            for one in self._open.values()
            if one.accepted == accepted and one.deadline is not None and one.deadline <= now
        ]

    def next(self) -> float | None:
        """When there is something to do; None if nothing is foreseen."""
        moments = [moment for one in self._open.values() for moment in (one.due, one.deadline) if moment is not None]
        return min(moments, default=None)
