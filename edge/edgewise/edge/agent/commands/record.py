"""One command as the device's table has it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any, Literal

from edgewise.edge.agent.moments import Moment
from edgewise.edge.agent.schema import moment_of
from edgewise.wire.fleet import ENDED, Ack, CommandState

Lane = Literal["control", "update", "infer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command that was checked and is to be kept.

    Attributes:
        reply: Topic that its end is told on too; None for the usual one alone.
        total_s, step_s: The two timers, from acceptance and from the last progress.
    """

    id: str
    op: str
    lane: Lane
    args: dict[str, Any]
    reply: str | None
    total_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An order and how far it is.

    Attributes:
        begun: It may have had an effect: this was written before it acted.
        cancelled: Somebody asked for its end.
        note: What its operation wrote down for a later start.
        outcome: What is told of its end; None before.
        moment: Of its acceptance; of its end, once it has ended.
    """

    id: str
    op: str
    lane: Lane
    args: dict[str, Any]
    reply: str | None
    state: CommandState
    step: str
    percent: float | None
    begun: bool
    cancelled: bool
    total_s: float
    step_s: float
    note: dict[str, Any] | None
    outcome: Ack | None
    moment: Moment

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def ack(self) -> Ack:
        """What is told of it now."""
        return self.outcome or Ack(state=self.state, step=self.step, percent=self.percent)


def record_of(row: sqlite3.Row) -> Record:
    outcome, note = row["outcome"], row["note"]
    return Record(
        id=row["id"],
        op=row["op"],
        lane=row["lane"],
        args=json.loads(row["args"]),
        reply=row["reply"],
        state=row["state"],
        step=row["step"],
        percent=row["percent"],
        begun=bool(row["begun"]),
        cancelled=bool(row["cancelled"]),
        total_s=row["total_s"],
        step_s=row["step_s"],
        note=None if note is None else json.loads(note),
        outcome=None if outcome is None else Ack.model_validate_json(outcome),
        moment=moment_of(row),
    )
