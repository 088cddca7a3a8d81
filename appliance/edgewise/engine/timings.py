"""The supervisor's limits and pauses in one place."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgewise.engine.heartbeat import Limits
from edgewise.engine.restart import RestartRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds, except `strikes`.

    Attributes:
        heartbeat_s: Interval of heartbeats; also how often they are judged.
        limits: When an engine counts as hung.
        patience_s: How long a submission waits for an engine that is starting or busy.
        strikes: Lives in a row that a request may see the end of without progress before it is failed.
        answer_s: How long `stats` and `memory` wait for fresh values.
        grace_s: How long an engine that was told to stop may take before it is killed.
        restart: When a crashed engine is started again.
    """

    heartbeat_s: float = 1.0
    limits: Limits = field(default_factory=Limits)
    patience_s: float = 30.0
    strikes: int = 3
    answer_s: float = 0.25
    grace_s: float = 3.0
    restart: RestartRules = field(default_factory=RestartRules)
