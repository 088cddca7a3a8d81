"""How jobs reach a cloud engine: one protocol, implemented over HTTP (`http.py`) and MQTT (`mqtt.py`) with the same messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, NamedTuple, Protocol

from edgewise.core.errors import LinkLost
from edgewise.wire.messages import Accepted, Blob, Chunk, CloudInfo, Final, JobControl, JobRequest
from edgewise.wire.stream_log import Place


class Traffic(NamedTuple):
    """Bytes of messages that one job cost so far."""

    up: int = 0
    down: int = 0


class NotReached(LinkLost):
    """There was no connection: nothing of what was asked can have been done."""


class Transport(Protocol):
    """Every method raises `LinkLost` when the link is down, and the error that the cloud names where it refuses (by its code in
    the error tree: `NotAuthenticated`, `QueueFull` with `retry_after_s`, `StreamGone`, ...)."""

    @property
    def name(self) -> Literal["http", "mqtt"]: ...

    def traffic(self, key: str) -> Traffic:
        """Of a job that was submitted here; zero once its end has been acknowledged, or if it never was."""

    async def info(self) -> CloudInfo: ...

    async def submit(self, request: JobRequest) -> Accepted:
        """Hand a job over. Safe to repeat: the same key is the same job."""

    async def knows(self, key: str, id: str) -> bool:
        """Whether the job `id`, which was submitted over another transport, is here this device's job `key`: then it goes on
        here as if it had been submitted here. Starts nothing."""

    def events(self, key: str, after: Place) -> AsyncGenerator[Chunk | Final, None]:
        """What follows `after`, to the final record. Chunks may repeat and overlap; the caller orders them.

        The job must have been submitted through this transport, which need not remember those of an earlier life: submitting
        again with the same key finds the same job.

        Raises:
            StreamGone, RangeNotThere: The place is before or behind what the cloud has.
        """

    async def control(self, control: JobControl) -> None:
        """Acknowledge or cancel."""

    async def put_blob(self, content: bytes, media: str) -> Blob: ...

    async def get_blob(self, blob: Blob) -> bytes:
        """Its bytes, checked against the hash; resumes where a lost link left it."""

    async def close(self) -> None: ...
