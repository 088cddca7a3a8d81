"""What /metrics says of the outbox."""

from __future__ import annotations

from typing import get_args

from edgewise.core.metrics import Metrics
from edgewise.edge.outbox.store import Counts
from edgewise.wire.messages import State


class Gauges:
    """As of the outbox's last look at its table, which follows every change."""

    def __init__(self, metrics: Metrics) -> None:
        self._jobs = metrics.gauge("outbox_jobs", "Deferred jobs by state", ("state",))
        self._undelivered = metrics.gauge("outbox_undelivered", "Results that are still to be delivered")
        self._bytes = metrics.gauge("outbox_bytes", "Bytes of requests and results of deferred jobs")
        self._oldest = metrics.gauge("outbox_oldest_seconds", "Age of the oldest deferred job that has not ended")

    def show(self, counts: Counts) -> None:
        for state in get_args(State):
            self._jobs.labels(state).set(counts.states.get(state, 0))
        self._undelivered.set(counts.undelivered)
        self._bytes.set(counts.bytes)
        self._oldest.set(counts.oldest_s)
