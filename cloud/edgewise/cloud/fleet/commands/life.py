"""What an acknowledgement does to a command, as pure rules (docs/wire.md). Only a device moves one beyond "sent"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgewise.wire.fleet import ENDED, CommandState

RANK: Mapping[str, int] = {"queued": 0, "sent": 1, "accepted": 2, "running": 3}
RESEND_S = (5.0, 15.0, 60.0)
"""Seconds after the latest sending at which an unacknowledged command is sent again; the last one goes on."""
Verdict = Literal["apply", "old", "late"]


@dataclass(frozen=True, slots=True)
class Known:
    """A command as it is known: its state, and the place (ep, seq) of the acknowledgement that made it."""

    state: CommandState
    place: tuple[int, int]


def judge(known: Known, state: CommandState, place: tuple[int, int]) -> Verdict:
    """What an acknowledgement with `state` at `place` means: "old" was overtaken by a later one, "late" comes after the end.

    An end that the device reports counts whatever came before it; nothing counts after an end.
    """
    if known.state in ENDED:
        return "old" if known.state == state else "late"
    if state in ENDED:
        return "apply"
    if place <= known.place or RANK[state] < RANK[known.state]:
        return "old"
    return "apply"


def next_try_s(tries: int) -> float:
    """Seconds after the sending number `tries`, from 1, at which it is sent again unless the device syncs before."""
    return RESEND_S[min(tries, len(RESEND_S)) - 1]
