"""Answers inputs in batches: the `engine.core.EngineCore` of an encoder. Runs in the engine process.

The most urgent class comes first, in a class the caller who has had least of the device's time, measured (`engine.fairness`): a
batch's time is shared out among its inputs by their weight. One caller's flood fills what others leave, of the batches and of the
places in the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, runtime_checkable

from edgewise.core.errors import DeadlineExceeded, EdgewiseError, QueueFull
from edgewise.engine.api import CacheTier, EngineStats, MemoryReport
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest, EncoderInfo, EncodeStats
from edgewise.engine.encoders.window import Window
from edgewise.engine.fairness import WaitingQueue
from edgewise.engine.heartbeat import resident_bytes
from edgewise.engine.ledger import Ledger
from edgewise.engine.notices import Notices, Notify
from edgewise.models.parts import Parts

_LEAST_S: Final = 1e-9
"""What an input counts for in a batch before anything is measured."""
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


@runtime_checkable
class Weighs(Protocol):
    """An encoder whose inputs differ in what they cost."""

    def weigh(self, one: Any) -> float:
        """What an input of `check` costs beside others; positive."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """`request` without its content: `inputs` are what was made of it, of which `offset` is next; it waits for that `since`.
    `read_s` is the time that reading it took, which its next part will say."""

    request: EncodeRequest
    inputs: Sequence[Any]
    asked: float
    since: float
    offset: int
    arrival: int
    read_s: float

    @property
    def rank(self) -> int:
        return int(self.request.priority)

    @property
    def key(self) -> str:
        return self.request.key


class EncoderCore:
    """Args:
    encoder: The model.
    ledger: With the model booked.
    max_batch: Inputs that are computed together.
    notices: What others have to say.
    """

    def __init__(
        self,
        info: EncoderInfo,
        encoder: Encoder,
        ledger: Ledger,
        *,
        max_batch: int,
        max_waiting: int,
        notices: Notices | None = None,
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
        self._waiting: WaitingQueue[_Waiting] = WaitingQueue()
        self._arrivals = 0
        self._encoder_s = 0.0
        self._ended: list[EncodeChunk] = []
        self._notices = notices or Notices()
        self._steps = 0

    def add(self, request: EncodeRequest) -> None:
        """See `EngineCore.add`; what cannot be read is refused here, before it takes a place in a batch."""
        self._check_room(request.key)
        began = self._now()
        checked = self._encoder.check(request.content, request.options)
        inputs = checked.inputs if isinstance(checked, Parts) else (checked,)
        now = self._now()
        took = now - began
        one = _Waiting(replace(request, content=b""), inputs, now, now, request.skip, self._next_arrival(), took)
        self._waiting.push(one, lead=request.lead_s)
        self._waiting.charge(one, took)
        self._encoder_s += took

    def _check_room(self, key: str) -> None:
        """Raise `QueueFull` for a key that has its even share of the places when all are taken: others may still come."""
        waiting = self._waiting.waiting(key)
        keys = self._waiting.keys + (0 if waiting else 1)
        if len(self._waiting) >= self._max_waiting and waiting >= max(1, self._max_waiting // keys):
            raise QueueFull(
                f"{len(self._waiting)} requests wait for '{self.info.model}' already, {waiting} of this key: try again later.",
                retry_after_s=1.0,
            )

    def _next_arrival(self) -> int:
        self._arrivals += 1
        return self._arrivals

    def cancel(self, request_id: str) -> None:
        for one in [one for one in self._waiting if one.request.id == request_id]:
            self._waiting.remove(one)
            self._ended.append(EncodeChunk(request_id=request_id, finish="cancelled"))

    @property
    def has_work(self) -> bool:
        return bool(len(self._waiting) or self._ended)

    def step(self) -> Sequence[EncodeChunk]:
        """Compute one batch: the most urgent first, then who has had least; a request with further parts goes to the end."""
        chunks, self._ended = self._ended, []
        now = self._now()
        for one in [one for one in self._waiting if _expired(one, now)]:
            self._waiting.remove(one)
            chunks.append(_failed(one, DeadlineExceeded("The request's deadline has passed before it was computed.")))
        count = min(len(self._waiting), self._max_batch)
        if not count or self._holds(count, now):
            return chunks
        batch = self._waiting.take(count, max(self._window.each_s, _LEAST_S))
        inputs = [one.inputs[one.offset] for one in batch]
        results = self._encoder.compute(inputs)
        self._steps += 1
        took = self._now() - now
        self._encoder_s += took
        self._window.computed(len(batch), now, now + took)
        shares = self._shares(inputs)
        for one, share, (result, content) in zip(batch, shares, results, strict=True):
            own = took * share
            self._waiting.charge(one, own)
            stats = EncodeStats(queued_s=now - one.since, compute_s=took, batch=len(batch), device_s=own + one.read_s)
            one.read_s = 0.0
            chunks.append(self._part(one, result, content, stats))
        return chunks

    def _shares(self, inputs: Sequence[Any]) -> list[float]:
        """Of a batch's time, for each input."""
        encoder = self._encoder
        weights = [encoder.weigh(one) if isinstance(encoder, Weighs) else 1.0 for one in inputs]
        whole = sum(weights)
        return [weight / whole for weight in weights]

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
            one.arrival = self._next_arrival()
            self._waiting.push(one)
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
        return EngineStats(
            waiting=len(self._waiting), steps=self._steps, encoder_seconds=self._encoder_s, rss_bytes=resident_bytes()
        )

    def memory(self) -> MemoryReport:
        return self._ledger.report()

    def close(self) -> None:
        self._waiting = WaitingQueue()


def _expired(one: _Waiting, now: float) -> bool:
    return one.request.deadline_s is not None and now - one.asked >= one.request.deadline_s


def _failed(one: _Waiting, error: EdgewiseError) -> EncodeChunk:
    return EncodeChunk(request_id=one.request.id, finish="error", error_code=error.code, error_message=error.message)
