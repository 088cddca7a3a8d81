"""Which pictures take the next step. Pure arithmetic on times handed in.

Pictures of one shape (equal `batch_key`) take a step together; those of other shapes take turns, step by step. Whose turn it is:

1. the more urgent class; a picture that was not served for `ageing_s` counts as one class more urgent, and so on;
2. in a class, pictures that would miss their deadline if they got less than every second step;
3. then the caller whose pictures have had least of the device: pixels times steps, as a counter for each class and key that is
   lifted to the least one of those waiting when a key comes back after a pause (`engine.fairness` does so for tokens);
4. then the picture that was served least, then the one that came first.

Who merely came first has no precedence: a large picture does not hold up the small ones behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgewise.core.errors import QueueFull
from edgewise.engine.pictures.request import DiffuseRequest

_RUSH = 2.0  # a picture whose remaining time is below so many times its remaining work is at risk
_KEPT_COUNTERS = 1024


@dataclass(slots=True, eq=False)
class Job:
    """A picture and how far it has come.

    Attributes:
        brief: `models.diffusion.protocol.Brief`, every value set.
        canvas: `models.diffusion.protocol.Canvas`; None until the picture was begun.
        shape: Its batch key.
        step_cost: What one step of it counts for in the fairness among callers.
        total: Steps to compute in all; `done` of them are.
        predicted: Of the steps done, those that the step cache predicted; `spared` says whether the last one was.
        shown: Previews sent.
        deadline_at, added_at, served_at, begun_at: On the engine's clock, in seconds.
    """

    request: DiffuseRequest
    brief: Any
    total: int
    step_cost: float
    arrival: int
    added_at: float
    deadline_at: float | None
    served_at: float
    canvas: Any = None
    shape: object = None
    done: int = 0
    predicted: int = 0
    spared: bool = False
    shown: int = 0
    begun_at: float | None = None
    denoised_at: float | None = None
    preemptions: int = 0
    retried: bool = False

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def left(self) -> int:
        return self.total - self.done


@dataclass(slots=True)
class PictureScheduler:
    """See the module's docstring.

    Attributes:
        max_running: Pictures that are being drawn; one of a more urgent class than all of them may be begun beyond it.
        max_batch: Pictures in one step.
        max_waiting: Pictures that wait to be begun.
        ageing_s: 0 for never.
        step_s: Learned duration of one step, for deadlines and estimates.
    """

    max_running: int
    max_batch: int
    max_waiting: int
    now: Callable[[], float]
    ageing_s: float = 60.0
    step_s: float = 0.1
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    _had: dict[tuple[int, str], float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"PictureScheduler({len(self.running)} running, {len(self.waiting)} waiting)"

    def add(self, job: Job) -> None:
        """Queue a picture.

        Raises:
            QueueFull: `max_waiting` wait already; says when it is worthwhile to ask again.
        """
        if len(self.waiting) >= self.max_waiting:
            left = self.step_s * sum(one.left for one in (*self.running, *self.waiting))
            raise QueueFull(
                f"{len(self.waiting)} pictures wait already (at most {self.max_waiting}); those ahead take about {left:.0f} s.",
                retry_after_s=max(1.0, left / (len(self.waiting) + len(self.running))),
            )
        self._lift(job)
        self.waiting.append(job)

    def remove(self, job: Job) -> None:
        """It has ended, however."""
        (self.running if job in self.running else self.waiting).remove(job)
        if len(self._had) > _KEPT_COUNTERS:
            keys = {self._account(one) for one in (*self.running, *self.waiting)}
            self._had = {account: had for account, had in self._had.items() if account in keys}

    def expired(self) -> list[Job]:
        now = self.now()
        return [job for job in (*self.running, *self.waiting) if job.deadline_at is not None and now >= job.deadline_at]

    def to_begin(self) -> Job | None:
        """The waiting picture to begin next, if there is a place for it."""
        first = min(self.waiting, key=self.turn, default=None)
        if first is None or len(self.running) < self.max_running:
            return first
        urgent = len(self.running) < 2 * self.max_running and all(self.rank(first) < self.rank(j) for j in self.running)
        return first if urgent else None

    def begun(self, job: Job) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        job.begun_at = self.now()

    def group(self) -> list[Job]:
        """The pictures that take the next step together; empty if none can."""
        order = sorted((job for job in self.running if job.left > 0), key=self.turn)
        return [job for job in order if job.shape == order[0].shape][: self.max_batch]

    def outranked(self, group: Sequence[Job]) -> bool:
        """Whether a picture outside the group is of a more urgent class than all in it."""
        best = min(self.rank(job) for job in group)
        others = (job for job in (*self.running, *self.waiting) if job not in group)
        return any(self.rank(job) < best for job in others)

    def charge(self, group: Sequence[Job], seconds: float) -> None:
        """The group has taken a step of so many seconds; a step that was predicted costs its caller nothing."""
        if not all(job.spared for job in group):
            self.step_s += 0.2 * (seconds - self.step_s)
        now = self.now()
        for job in group:
            job.served_at = now
            if not job.spared:
                account = self._account(job)
                self._had[account] = self._had.get(account, 0.0) + job.step_cost

    def rank(self, job: Job) -> int:
        """Its class, or a more urgent one if it was not served for long."""
        if self.ageing_s <= 0:
            return int(job.request.priority)
        return max(0, int(job.request.priority) - int((self.now() - job.served_at) / self.ageing_s))

    def turn(self, job: Job) -> tuple[int, bool, float, int, int]:
        """Sort key, see the module's docstring."""
        return (self.rank(job), not self._rushed(job), self._had.get(self._account(job), 0.0), job.done, job.arrival)

    def _rushed(self, job: Job) -> bool:
        if job.deadline_at is None:
            return False
        return job.deadline_at - self.now() < _RUSH * job.left * self.step_s

    def _lift(self, job: Job) -> None:
        """A key that has nothing here begins at the level of those that have."""
        account = self._account(job)
        others = {self._account(one) for one in (*self.running, *self.waiting)}
        if account not in others:
            level = min((self._had.get(one, 0.0) for one in others if one[0] == account[0]), default=0.0)
            self._had[account] = max(self._had.get(account, 0.0), level)

    @staticmethod
    def _account(job: Job) -> tuple[int, str]:
        return int(job.request.priority), job.request.key
