"""What /metrics says of jobs. Autoscalers want `edgewise_jobs_queued`, `edgewise_jobs_oldest_seconds` and the rate of
`edgewise_jobs_busy_seconds_total`, which is the mean number of busy workers."""

from __future__ import annotations

from collections.abc import Iterable

from edgewise.cloud.jobs.records import Queue
from edgewise.core.metrics import Metrics
from edgewise.core.priority import Priority


class CloudMetrics:
    """Labels are deadline classes, kinds of work and states: closed sets."""

    def __init__(self, metrics: Metrics) -> None:
        classes = ("priority",)
        self.queued = metrics.gauge("jobs_queued", "Jobs that wait for a worker", classes)
        self.running = metrics.gauge("jobs_running", "Jobs that are worked off", classes)
        self.oldest = metrics.gauge("jobs_oldest_seconds", "Age of the oldest job that waits; 0 without one", classes)
        self.busy = metrics.counter("jobs_busy_seconds", "Seconds that workers were busy", ("kind",))
        self.jobs = metrics.counter("jobs_ended", "Jobs that were worked on and ended", ("state",))
        self.attempts = metrics.counter("jobs_attempts", "Attempts begun: the first at a job, or again", ("which",))
        self.fenced = metrics.counter("jobs_fenced", "Attempts whose writes were refused: their lease was lost")
        self.dropped = metrics.counter("jobs_messages_dropped", "Messages that were malformed or too large", ("link",))
        self.queues(())

    def queues(self, queues: Iterable[Queue]) -> None:
        """The queue as it is now."""
        known = {queue.priority: queue for queue in queues}
        for priority in Priority:
            queue = known.get(priority) or Queue(priority=priority, queued=0, running=0, oldest_s=0.0)
            self.queued.labels(priority.label).set(queue.queued)
            self.running.labels(priority.label).set(queue.running)
            self.oldest.labels(priority.label).set(queue.oldest_s)
