"""Answers inputs in batches: the `engine.core.EngineCore` of an encoder. Runs in the engine process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from edgewise.core.errors import DeadlineExceeded, EdgewiseError, QueueFull
from edgewise.engine.api import CacheTier, EngineStats, MemoryReport
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest, EncoderInfo, EncodeStats
from edgewise.engine.encoders.window import Window
from edgewise.engine.heartbeat import resident_bytes
from edgewise.engine.ledger import Ledger
from edgewise.engine.notices import Notices, Notify
from edgewise.models.parts import Parts

_MOMENT_S: Final = 0.0002
"""Between two looks at the inbox while a batch waits for company (`window`)."""

Result = tuple[Mapping[str, Any], bytes]
"""`result` and `content` of an `EncodeChunk`."""


class Encoder(Protocol):
    """A loaded model: inputs in, one result each. What it raises ends the process."""

    def check(self, content: bytes, options: Mapping[str, Any]) -> Any:
        """What is computed, from what a caller sent; `Parts` of it, where the answer shall begin before it is whole. Raises
        `EdgewiseError`, naming the field."""

    def compute(self, inputs: Sequence[Any]) -> Sequence[Result]:
        """One result for each, in order."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """`request` without its content: `inputs` are what was made of it, of which `offset` is next; it waits for that `since`."""

    request: EncodeRequest
    inputs: Sequence[Any]
    asked: float
    since: float
    offset: int


class EncoderCore:
    """Args:
    encoder: The model.
    ledger: With the model booked.
    max_batch: Inputs that are computed together.
    """

    def __init__(
        self,
        info: EncoderInfo,
        encoder: Encoder,
        ledger: Ledger,
        *,
        max_batch: int,
        max_waiting: int,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.info = info
        self._encoder = encoder
        self._ledger = ledger
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._now = now
        self._sleep = sleep
        self._window = Window()
        self._waiting: deque[_Waiting] = deque()
        self._ended: list[EncodeChunk] = []
        self._notices = Notices()
        self._steps = 0

    def add(self, request: EncodeRequest) -> None:
        """See `EngineCore.add`; what cannot be read is refused here, before it takes a place in a batch."""
        if len(self._waiting) >= self._max_waiting:
            raise QueueFull(f"{self._max_waiting} requests wait for '{self.info.model}' already.", retry_after_s=1.0)
        checked = self._encoder.check(request.content, request.options)
        inputs = checked.inputs if isinstance(checked, Parts) else (checked,)
        now = self._now()
        self._waiting.append(_Waiting(replace(request, content=b""), inputs, now, now, request.skip))

    def cancel(self, request_id: str) -> None:
        kept = deque(one for one in self._waiting if one.request.id != request_id)
        if len(kept) < len(self._waiting):
            self._waiting = kept
            self._ended.append(EncodeChunk(request_id=request_id, finish="cancelled"))

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._ended)

    def step(self) -> Sequence[EncodeChunk]:
        """Compute one batch: the most urgent first, then in order of arrival; a request with further parts goes to the end."""
        chunks, self._ended = self._ended, []
        now = self._now()
        for one in [one for one in self._waiting if _expired(one, now)]:
            self._waiting.remove(one)
            chunks.append(_failed(one, DeadlineExceeded("The request's deadline has passed before it was computed.")))
        batch = sorted(self._waiting, key=lambda one: one.request.priority)[: self._max_batch]
        if not batch or self._holds(len(batch), now):
            return chunks
        for one in batch:
            self._waiting.remove(one)
        results = self._encoder.compute([one.inputs[one.offset] for one in batch])
        self._steps += 1
        took = self._now() - now
        self._window.computed(len(batch), now, now + took)
        for one, (result, content) in zip(batch, results, strict=True):
            stats = EncodeStats(queued_s=now - one.since, compute_s=took, batch=len(batch))
            chunks.append(self._part(one, result, content, stats))
        return chunks

    def _holds(self, waiting: int, now: float) -> bool:
        """Whether the batch waits for company; a moment of that has passed then, after which the inbox is read."""
        left = self._window.hold(waiting, self._max_batch, now)
        if left > 0:
            self._sleep(min(left, _MOMENT_S))
        return left > 0

    def _part(self, one: _Waiting, result: Mapping[str, Any], content: bytes, stats: EncodeStats) -> EncodeChunk:
        """The next part of an answer; what comes after it waits again."""
        offset, one.offset, one.since = one.offset, one.offset + 1, self._now()
        if more := one.offset < len(one.inputs):
            self._waiting.append(one)
        return EncodeChunk(
            request_id=one.request.id,
            finish=None if more else "done",
            offset=offset,
            result=result,
            content=content,
            stats=stats,
        )

    def limit(self, max_running: int, pace: float) -> None:
        """See `engine.core.Limited`: smaller batches."""
        del pace
        self._max_batch = max_running

    def listen(self, listener: Notify) -> None:
        self._notices.listen(listener)

    def clear_cache(self, tier: CacheTier | None) -> dict[str, int]:
        """It keeps none."""
        del tier
        return {}

    def stats(self) -> EngineStats:
        return EngineStats(waiting=len(self._waiting), steps=self._steps, rss_bytes=resident_bytes())

    def memory(self) -> MemoryReport:
        return self._ledger.report()

    def close(self) -> None:
        self._waiting.clear()


def _expired(one: _Waiting, now: float) -> bool:
    return one.request.deadline_s is not None and now - one.asked >= one.request.deadline_s


def _failed(one: _Waiting, error: EdgewiseError) -> EncodeChunk:
    return EncodeChunk(request_id=one.request.id, finish="error", error_code=error.code, error_message=error.message)
