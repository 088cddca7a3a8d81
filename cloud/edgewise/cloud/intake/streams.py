"""Streams that tenants have open, counted. A place is given back when its stream ends, and when it is dropped unread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType

from edgewise.core.errors import QueueFull

READERS = 8
"""Streams of one job at once: a device that reconnects may be there twice for a while."""
_AGAIN_S = 1.0


class Streams:
    """All in the event loop.

    Args:
        limit: Jobs that a tenant may follow at once; None for any number.
    """

    def __init__(self, limit: Callable[[str], int | None]) -> None:
        self._limit = limit
        self._readers: Counter[tuple[str, str]] = Counter()
        self._jobs: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"Streams({sum(self._readers.values())})"

    def open(self, tenant: str, job: str) -> StreamPlace:
        """A place for one more stream. Those of one job count once, so that nobody who reconnects is refused.

        Raises:
            QueueFull: The tenant has none left.
        """
        limit, readers = self._limit(tenant), self._readers[tenant, job]
        if not readers and limit is not None and self._jobs[tenant] >= limit:
            raise QueueFull(
                f"'{tenant}' has streams of {limit} jobs open, which is its limit: read one to its end or close it first.",
                retry_after_s=_AGAIN_S,
                param="streams",
            )
        if readers >= READERS:
            raise QueueFull(
                f"The job {job} is read by {readers} streams at once, which is the limit: close one first.",
                retry_after_s=_AGAIN_S,
                param="streams",
            )
        self._jobs[tenant] += not readers
        self._readers[tenant, job] += 1
        return StreamPlace(self, tenant, job)

    def close(self, tenant: str, job: str) -> None:
        self._readers[tenant, job] -= 1
        if not self._readers[tenant, job]:
            del self._readers[tenant, job]
            self._jobs[tenant] -= 1
            if not self._jobs[tenant]:
                del self._jobs[tenant]


class StreamPlace:
    """Held by the stream that it was given to."""

    def __init__(self, streams: Streams, tenant: str, job: str) -> None:
        self._streams: Streams | None = streams
        self._tenant = tenant
        self._job = job

    def __repr__(self) -> str:
        return f"StreamPlace({self._tenant}, {self._job}, open={self._streams is not None})"

    def __enter__(self) -> StreamPlace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()  # of a generator that nobody ever began

    def release(self) -> None:
        """Give it back, once."""
        if self._streams is not None:
            self._streams.close(self._tenant, self._job)
            self._streams = None
