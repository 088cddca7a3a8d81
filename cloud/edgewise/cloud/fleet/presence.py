"""Whether a device is there, as a pure state machine: what it said in which session, and what silence means (docs/wire.md).

A session is numbered by `ep`, which the device stores before each connect; its will carries the same number. So whatever order a
broker delivers in, the session with the highest number is the one that counts, and its end is final: a will of an older session,
or a repeat of "online" after its end, changes nothing. No clock of a device is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from edgewise.cloud.fleet.views import DeviceState
from edgewise.wire.fleet import Live

PRESENT: tuple[DeviceState, ...] = ("online", "degraded", "draining")
"""States in which a device can be asked for something."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Attributes:
    ep, seq: The latest session, and the message of it that counts.
    gone_at: Since when it may be gone: its session ended without a word of when it is back.
    expected_until: Until when its absence was announced.
    degraded: Why it is not well, "" if it is.
    """

    state: DeviceState = "never-seen"
    reason: str = ""
    since: float = 0.0
    ep: int = 0
    seq: int = 0
    ended: bool = False
    gone_at: float | None = None
    expected_until: float | None = None
    degraded: str = ""


def said(before: Presence, live: Live, ep: int, seq: int, now: float) -> Presence:
    """After a device, or its will, said how it is. `now` is this service's clock."""
    if ep < before.ep or (ep == before.ep and before.ended):
        return before
    if live.state == "offline":
        return _ended(replace(before, ep=ep, seq=max(seq, before.seq) if ep == before.ep else seq), live, now)
    if ep == before.ep and seq < before.seq:
        return before
    return _alive(replace(before, ep=ep, seq=seq), live.state, live.reason, now)


def heard(before: Presence, ep: int, now: float) -> Presence:
    """After any other message: its session is alive, even if it was believed lost; but not if it has ended."""
    if ep < before.ep or (ep == before.ep and (before.ended or before.state in PRESENT)):
        return before
    after = replace(before, ep=ep, seq=0) if ep > before.ep else before
    return _alive(after, "online", "", now)


def well(before: Presence, degraded: str, now: float) -> Presence:
    """After it is known anew whether it is well: `degraded` says why not."""
    after = replace(before, degraded=degraded)
    if before.state not in ("online", "degraded"):
        return after
    return _become(after, "degraded" if degraded else "online", degraded, now)


def passed(before: Presence, now: float, grace_s: float) -> Presence:
    """After time went by: a device that is gone for longer than the grace, or than it announced, is offline."""
    if before.gone_at is not None and before.state in PRESENT and now >= before.gone_at + grace_s:
        return _become(replace(before, gone_at=None), "offline", before.reason, now)
    if before.state == "offline-expected" and before.expected_until is not None and now >= before.expected_until:
        return _become(before, "offline", f"not back in time: {before.reason}".rstrip(": "), now)
    return before


def lost(before: Presence, now: float) -> Presence:
    """After nothing was heard of it for long enough since this service, or its broker, came back."""
    if before.state not in PRESENT:
        return before
    return _become(replace(before, gone_at=None), "offline", "not heard of since the fleet service came back", now)


def _ended(before: Presence, live: Live, now: float) -> Presence:
    after = replace(before, ended=True, expected_until=None)
    if live.expected_s is not None:
        until = now + live.expected_s
        return _become(replace(after, expected_until=until, gone_at=None), "offline-expected", live.reason, now)
    if before.state not in PRESENT:
        return _become(after, "offline", live.reason, now)
    return replace(after, gone_at=now, reason=live.reason)


def _alive(before: Presence, state: Literal["online", "draining"], reason: str, now: float) -> Presence:
    after = replace(before, ended=False, gone_at=None, expected_until=None)
    if state == "online" and before.degraded:
        return _become(after, "degraded", before.degraded, now)
    return _become(after, state, reason, now)


def _become(before: Presence, state: DeviceState, reason: str, now: float) -> Presence:
    since = before.since if before.state == state else now
    return replace(before, state=state, reason=reason[:200], since=since)
