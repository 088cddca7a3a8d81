"""A circuit breaker: after failures in a row nobody asks for a while, then one probe finds out whether asking helps again. Pure.

    closed    --(so many failures in a row)-->    open
    open      --(the pause is over: a probe)-->   half-open
    half-open --(the probe succeeds)-->           closed
    half-open --(the probe fails)-->              open, for twice as long

Only the probe is sent while it is half-open: no request of a tenant is the one that finds out (M. Nygard, "Release It!").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NewType

from edgewise.core.errors import EngineUnavailable

BreakerState = Literal["closed", "half_open", "open"]
Permit = NewType("Permit", int)
"""Given to whoever may ask; its outcome counts only while no other change of state has come between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRules:
    """When it opens, and for how long.

    Attributes:
        failures: So many in a row open it.
        pause_s: Seconds from opening to the first probe; doubled by each probe that fails, up to `longest_s`. A success
            while it is closed makes the pause short again.
    """

    failures: int = 5
    pause_s: float = 2.0
    longest_s: float = 60.0


class Breaker:
    """The state of one upstream.

    Args:
        name: For messages: what cannot be asked while it is not closed.
        rules: When it opens.
        now: Monotonic clock.
        on_change: Called with the state before, the state after and why.
    """

    def __init__(
        self,
        name: str,
        rules: BreakerRules | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        on_change: Callable[[BreakerState, BreakerState, str], None] | None = None,
    ) -> None:
        self._name = name
        self._rules = rules or BreakerRules()
        self._now = now
        self._on_change = on_change
        self._state: BreakerState = "closed"
        self._era = 0
        self._failures = 0
        self._pause = self._rules.pause_s
        self._until = 0.0
        self._why = ""

    def __repr__(self) -> str:
        return f"Breaker({self._name}, {self._state}, failures={self._failures})"

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def probe_in_s(self) -> float | None:
        """Seconds until a probe is due; None while it is closed or a probe is under way."""
        return max(0.0, self._until - self._now()) if self._state == "open" else None

    def admit(self) -> Permit:
        """Leave to send a request.

        Raises:
            EngineUnavailable: It is not closed.
        """
        if self._state == "closed":
            return Permit(self._era)
        raise EngineUnavailable(
            f"{self._name} has failed and is not asked for now: {self._why}",
            retry_after_s=max(1.0, self.probe_in_s or 0.0),
        )

    def begin_probe(self) -> Permit | None:
        """Leave to send the probe; None if none is due."""
        if self.probe_in_s != 0.0:
            return None
        self._change("half_open", "the pause is over")
        return Permit(self._era)

    def succeeded(self, permit: Permit) -> None:
        """What the permit was for has worked."""
        if permit != self._era:
            return
        self._failures = 0
        if self._state == "half_open":  # the pause stays long until a request has succeeded as well
            self._change("closed", "the probe succeeded")
        else:
            self._pause = self._rules.pause_s

    def failed(self, permit: Permit, why: str) -> None:
        """What the permit was for has failed, by a fault of the upstream's."""
        if permit != self._era:
            return
        self._failures += 1
        if self._state == "closed" and self._failures < self._rules.failures:
            return
        self._why = why
        self._until = self._now() + self._pause
        self._pause = min(2 * self._pause, self._rules.longest_s)
        self._change("open", why)

    def abandoned(self, permit: Permit) -> None:
        """What the permit was for has been given up; nothing is known of it. Another probe is due at once."""
        if permit == self._era and self._state == "half_open":
            self._until = self._now()
            self._change("open", "the probe was given up")

    def _change(self, state: BreakerState, why: str) -> None:
        before, self._state = self._state, state
        self._era += 1
        if self._on_change is not None:
            self._on_change(before, state, why)
