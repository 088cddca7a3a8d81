"""What the job table hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgewise.core.priority import Priority
from edgewise.wire.messages import TERMINAL, Blob, Final, Finish, JobRequest, State, Unit
from edgewise.wire.stream_log import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as the table has it.

    Attributes:
        base: Offset at which its stream begins: items that the device had already.
        first: Lowest offset that is still handed out; items below were acknowledged.
        count: Offset after the last item in the log.
        attempt: The latest one, 0 before the first; also the fencing number.
        received_at, finished_at: Seconds since the epoch.
        kept: Whether prompt, chunks and blobs are still there.
        final: Its last record; without content once that was dropped.
    """

    id: str
    tenant: str
    device: str
    key: str
    model: str
    kind: str
    priority: Priority
    state: State
    base: int
    first: int
    count: int
    attempt: int
    failures: int
    received_at: float
    finished_at: float | None
    kept: bool
    final: Final | None

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def place(self) -> Place:
        """Where its log ends."""
        return Place(self.attempt, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write to a job, as long as its number is the latest."""

    job: str
    attempt: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A job with the lease on it.

    Attributes:
        request: As the device sent it.
        tokens, text: The whole stream so far, what the device had already included.
        deadline_s: Seconds until it expires; None never.
    """

    job: Job
    request: JobRequest
    lease: Lease
    tokens: tuple[int, ...]
    text: str
    deadline_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A line of usage: what one ended job, or several, cost."""

    tenant: str
    model: str
    jobs: int
    prompt_tokens: int
    completion_tokens: int
    steps: int
    busy_s: float
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What waits and what runs in one class; `oldest_s` is the age of the oldest waiting job, 0 without one."""

    priority: Priority
    queued: int
    running: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a job ends, as far as whoever ends it knows; the table adds counts, hash, and what earlier attempts cost.

    Attributes:
        prompt_tokens: As the back end counts them, for the bill of a job that came as text.
        busy_s: Seconds that this attempt was computed.
    """

    state: State
    finish: Finish
    unit: Unit = "tokens"
    prompt_tokens: int = 0
    busy_s: float = 0.0
    blobs: tuple[Blob, ...] = ()
    facts: dict[str, Any] | None = None
    numeric_class: str | None = None
    precision: dict[str, str] | None = None
    error_code: str | None = None
    error_message: str | None = None
    retryable: bool = False
