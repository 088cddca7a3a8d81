"""What the supervisor publishes for operators and for progress bars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EventKind = Literal[
    "starting", "progress", "ready", "crashed", "restarting", "failed", "stopped", "request_failed", "notice"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvent:
    """Something that happened to the engine process.

    Attributes:
        epoch: Number of the engine's life, from 1.
        message: One sentence.
        pid: Process id, of "starting" and "ready".
        status: Of "crashed": exit code, or minus the number of the signal; None if no process could be started.
        stage, fraction: Of "progress": what is being loaded and how much of it is done, 0 to 1.
        request_id, code: Of "request_failed": the request and the error code it got. Of "notice": the notice's stable word.
        delay_s: Of "restarting" and "failed": seconds until the next start.
    """

    kind: EventKind
    epoch: int
    message: str
    pid: int | None = None
    status: int | None = None
    stage: str | None = None
    fraction: float | None = None
    request_id: str | None = None
    code: str | None = None
    delay_s: float | None = None
