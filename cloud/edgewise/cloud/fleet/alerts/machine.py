"""When an alert is raised and when it is over: a pure state per rule and device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgewise.cloud.fleet.alerts.rules import Certificate, Condition, Offline, OutOfSync


@dataclass(frozen=True, slots=True)
class Standing:
    """`since`: when the condition began to hold without a break; None while it does not. `raised`: the alert is open."""

    since: float | None = None
    raised: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What a condition finds on a device. `value` None: nothing is known, which neither raises nor ends an alert."""

    value: float | None
    beyond: bool = False
    back: bool = False


def read(condition: Condition, value: float | None) -> Reading:
    """A value in the light of a condition; for those without a bound, `value` is 1 where it holds and 0 where not."""
    if value is None:
        return Reading(None)
    if isinstance(condition, Certificate):
        return Reading(value, value < condition.below_days, value >= condition.below_days)
    if isinstance(condition, Offline | OutOfSync):
        return Reading(value, value > 0, value <= 0)
    return Reading(value, condition.beyond(value), condition.back(value))


def step(standing: Standing, reading: Reading, hold_s: float, now: float) -> Standing:
    """The standing after a reading. It is raised once the condition has held for `hold_s`, and over when the value is back;
    between bound and way back nothing changes."""
    if reading.value is None:
        return standing
    if standing.raised:
        return Standing() if reading.back else standing
    if not reading.beyond:
        return Standing()
    since = now if standing.since is None else min(standing.since, now)
    return replace(standing, since=since, raised=now - since >= hold_s)


def hold_s(condition: Condition) -> float:
    """For how long it must hold."""
    return 0.0 if isinstance(condition, Certificate) else condition.for_s
