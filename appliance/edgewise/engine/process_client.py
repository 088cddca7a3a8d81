"""An engine process as the service sees it, whatever it makes; `engine.client` and its like say what.

Imports no torch. Everything runs on one event loop and nothing in it waits for the engine longer than a stated bound.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from edgewise.core.errors import EdgewiseError, EngineUnavailable, QueueFull, ShuttingDown
from edgewise.core.log import Logger, get_logger
from edgewise.core.patience import wait_set
from edgewise.engine.api import CacheTier, EngineState, EngineStats, MemoryReport
from edgewise.engine.book_base import Accept, Action, Answered, Book, Deliver, Refuse, RequestT, Send
from edgewise.engine.events import EngineEvent
from edgewise.engine.messages import (
    Accepted,
    AnyConfig,
    CacheCleared,
    ClearCache,
    Limit,
    MemoryQuery,
    MemoryReply,
    Message,
    Notice,
    Refused,
    StatsQuery,
    StatsReply,
    Submit,
    SubmitEncode,
    SubmitPicture,
    ToService,
)
from edgewise.engine.stream import Chunk, Mailbox, RequestStream
from edgewise.engine.supervisor import EngineSupervisor
from edgewise.engine.timings import Timings

_CLOCK_S = 0.1
"""Interval at which deadlines and held requests are looked at while any request is open."""


T = TypeVar("T")


class _Chunk(Answered, Chunk, Protocol):
    """What an answer comes in."""


ChunkT = TypeVar("ChunkT", bound=_Chunk)
InfoT = TypeVar("InfoT")


@dataclass(slots=True)
class _Open(Generic[ChunkT]):
    """The consumer's side of an open request. `answer` holds None once it is accepted, or why it was refused."""

    mailbox: Mailbox[ChunkT]
    answer: asyncio.Future[EdgewiseError | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class _Gauge(Generic[T]):
    """The last known value of something that only the engine knows; at most one question to it is under way."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.answers = 0
        self._at: float | None = None
        self._asked: asyncio.Future[None] | None = None

    @property
    def age_s(self) -> float | None:
        return None if self._at is None else time.monotonic() - self._at

    @property
    def asked(self) -> bool:
        """Whether a question is under way."""
        return self._asked is not None

    async def refresh(self, ask: Callable[[], None], bound_s: float) -> None:
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            ask()
        await asyncio.wait({self._asked}, timeout=bound_s)

    def answer(self, value: T) -> None:
        self.value, self._at = value, time.monotonic()
        self.answers += 1
        self.give_up()

    def give_up(self) -> None:
        if self._asked is not None:
            self._asked.set_result(None)
            self._asked = None


class ProcessClient(ABC, Generic[RequestT, ChunkT, InfoT]):
    """Owns the engine process from `start` to `stop` and routes chunks to streams.

    Args:
        book: Of open requests of this kind.
        config: How the engine is built.
        factory: "module:function" or "/path/file.py:function" that builds the engine in the child process.
        timings: Limits and pauses of supervision.
        log: Where crashes and restarts are logged.
        on_event: Told of every event of supervision, in the event loop; an exception in it is logged and dropped.
    """

    def __init__(
        self,
        book: Book[RequestT, ChunkT, Any],
        config: AnyConfig,
        *,
        factory: str,
        timings: Timings | None = None,
        log: Logger | None = None,
        on_event: Callable[[EngineEvent], None] | None = None,
    ) -> None:
        self._config = config
        self._factory = factory
        self._timings = timings or Timings()
        self._log = log or get_logger(__name__)
        self._on_event = on_event
        self._requests = book
        self._open: dict[str, _Open[ChunkT]] = {}
        self._supervisor: EngineSupervisor | None = None
        self._info: InfoT | None = None
        self._stats = _Gauge(EngineStats())
        self._memory = _Gauge(MemoryReport(budget_bytes=0, available_bytes=0))
        self._cleared = _Gauge[dict[str, int]]({})
        self._clock: asyncio.Task[None] | None = None
        self._busy = asyncio.Event()
        self._idle = asyncio.Event()
        self._ready = asyncio.Event()
        self._failed = asyncio.Event()
        self._closing = False
        self._limit: Limit | None = None

    # --- what each kind brings ---------------------------------------------------------------------------------------

    @abstractmethod
    def _resume(self, epoch: int, info: InfoT, now: float) -> list[Action]:
        """Tell the book that a life has begun."""

    @abstractmethod
    def _chunks_of(self, message: ToService) -> tuple[int, Sequence[ChunkT]] | None:
        """Epoch and chunks of a message of this kind; None for another message."""

    @abstractmethod
    def _is_progress(self, chunk: ChunkT) -> bool:
        """Whether a chunk shows that the engine's life was not in vain."""

    @abstractmethod
    def _mailbox(self) -> Mailbox[ChunkT]: ...

    # --- state -------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.state}, {self._requests!r})"

    @property
    def state(self) -> EngineState:
        return "stopped" if self._supervisor is None else self._supervisor.state

    @property
    def info(self) -> InfoT | None:
        """Of the last engine that was ready."""
        return self._info

    @property
    def pid(self) -> int | None:
        """Process id of the present engine process."""
        return None if self._supervisor is None else self._supervisor.pid

    @property
    def failure(self) -> EdgewiseError | None:
        """Why the last life ended, until the next one is ready."""
        return None if self._supervisor is None else self._supervisor.failure

    @property
    def open_requests(self) -> int:
        return len(self._requests)

    @property
    def stats_age_s(self) -> float | None:
        """Seconds since the engine gave the values that `stats` returns; None if it never has."""
        return self._stats.age_s

    @property
    def memory_age_s(self) -> float | None:
        """As `stats_age_s`, for `memory`."""
        return self._memory.age_s

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start supervision and return at once; `wait_ready` tells when the engine is there."""
        if self._supervisor is not None:
            raise RuntimeError("the engine client has been started already")
        self._closing = False
        self._failed.clear()
        self._supervisor = EngineSupervisor(
            config=self._config, factory=self._factory, timings=self._timings, listener=self, log=self._log
        )
        self._clock = asyncio.get_running_loop().create_task(self._tick(), name="engine-clock")
        self._settle()
        self._supervisor.start()

    async def wait_ready(self, timeout_s: float | None = None) -> InfoT:
        """Wait until the engine can work.

        Raises:
            BadModelFile, UnsupportedModel, ConfigError: What the engine said when it refused to load.
            EngineUnavailable: It was not ready in time, or has failed for another reason.
            ShuttingDown: `stop` has been called.
        """
        supervisor = self._supervisor
        if supervisor is None:
            raise EngineUnavailable("The engine has not been started.")
        waits = [asyncio.ensure_future(event.wait()) for event in (self._ready, self._failed)]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._closing:
            raise ShuttingDown("The service is shutting down.")
        if self._ready.is_set() and self._info is not None:
            return self._info
        if self._failed.is_set() and supervisor.failure is not None:
            raise supervisor.failure
        raise supervisor.unavailable()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Refuse new requests, let open ones run on for at most `drain_s`, end the rest with `shutting_down`, end the engine."""
        supervisor, clock = self._supervisor, self._clock
        if supervisor is None or clock is None:
            return
        self._closing = True
        try:
            if drain_s > 0:
                await wait_set(self._idle, drain_s)
        finally:
            error = ShuttingDown("The service is shutting down; the answer was cut.")
            self._do(self._requests.fail_all(error, time.monotonic()))
            clock.cancel()
            self._failed.set()  # nobody waits until it is ready any more
            await supervisor.stop()
            await asyncio.wait({clock})
            self._supervisor = self._clock = None

    # --- requests ----------------------------------------------------------------------------------------------------

    async def submit(self, request: RequestT) -> RequestStream[ChunkT]:
        """See `engine.api.Engine.submit`; waits while the engine is starting or busy, up to `patience_s`.

        Raises:
            ShuttingDown: `stop` has been called.
            EngineFault: The request made the engine crash repeatedly.
        """
        supervisor = self._check_open()
        key, actions = self._requests.open(request, time.monotonic())
        consumer = self._open[key] = _Open(self._mailbox())
        self._do(actions)
        try:
            await asyncio.wait({consumer.answer}, timeout=self._timings.patience_s)
        except asyncio.CancelledError:
            self._abandon(key)
            raise
        if not consumer.answer.done():
            self._abandon(key)
            raise self._too_late(supervisor)
        refusal = consumer.answer.result()
        if refusal is not None:
            raise refusal
        return RequestStream(consumer.mailbox, partial(self._abandon, key), asyncio.get_running_loop())

    async def stats(self) -> EngineStats:
        """The newest values to be had within `answer_s`; older ones while the engine is busy or gone (`stats_age_s`)."""
        await self._refresh(self._stats, StatsQuery())
        stats, supervisor = self._stats.value, self._supervisor
        if stats.rss_bytes == 0 and supervisor is not None:
            return replace(stats, rss_bytes=supervisor.rss_bytes)
        return stats

    async def memory(self) -> MemoryReport:
        """As `stats`, for the memory ledger (`memory_age_s`)."""
        await self._refresh(self._memory, MemoryQuery())
        return self._memory.value

    def limit(self, share: float, pace: float) -> None:
        """Let the engine do less until the next call, also after a restart; what it has begun goes on.

        Args:
            share: Of the configured batch, 0 to 1; one sequence at least.
            pace: Share of the time in which pictures are drawn, above 0.
        """
        self._limit = Limit(max_running=max(1, int(share * self._config.max_running)), pace=pace)
        self._send_limit()

    def _send_limit(self) -> None:
        if self._limit is not None and self._supervisor is not None and self._ready.is_set():
            self._supervisor.send(self._limit)

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        """See `engine.api.Engine.clear_cache`."""
        supervisor = self._supervisor
        if supervisor is None or not self._ready.is_set():
            return {}
        while self._cleared.asked:  # somebody else's question may be for another tier
            await self._answered(lambda: None)
        await self._answered(lambda: supervisor.send(ClearCache(tier=tier)))
        return self._cleared.value

    async def _answered(self, ask: Callable[[], None]) -> None:
        before = self._cleared.answers
        await self._cleared.refresh(ask, self._timings.patience_s)
        if self._cleared.answers == before:
            raise EngineUnavailable("The engine did not clear its cache in time; ask again.", retry_after_s=1.0)

    def _check_open(self) -> EngineSupervisor:
        supervisor = self._supervisor
        if self._closing:
            raise ShuttingDown("The service is shutting down.")
        if supervisor is None:
            raise EngineUnavailable("The engine has not been started.")
        if supervisor.state == "failed":
            raise supervisor.unavailable()
        limit = self._config.max_running + self._config.max_waiting
        if not self._ready.is_set() and len(self._requests) >= limit:
            raise QueueFull(
                f"{limit} requests wait for the engine to start, as many as it takes (engine.max_running and "
                "engine.max_waiting): try again shortly.",
                retry_after_s=5.0,
            )
        return supervisor

    def _too_late(self, supervisor: EngineSupervisor) -> EngineUnavailable:
        if not self._ready.is_set():
            return supervisor.unavailable()
        patience = self._timings.patience_s
        return EngineUnavailable(
            f"The engine was too busy to take the request in {patience:g} s.", retry_after_s=patience
        )

    async def _refresh(self, gauge: _Gauge[Any], query: StatsQuery | MemoryQuery) -> None:
        supervisor = self._supervisor
        if supervisor is not None and self._ready.is_set():
            await gauge.refresh(lambda: supervisor.send(query), self._timings.answer_s)

    def _abandon(self, key: str) -> None:
        """The consumer has left."""
        self._open.pop(key, None)
        self._do(self._requests.cancel(key, time.monotonic()))

    # --- what the supervisor tells (`Listener`) ----------------------------------------------------------------------

    def engine_up(self, epoch: int, info: InfoT) -> None:
        self._info = info
        self._failed.clear()
        self._ready.set()
        self._send_limit()
        self._do(self._resume(epoch, info, time.monotonic()))

    def engine_down(self) -> None:
        self._ready.clear()
        self._stats.give_up()
        self._memory.give_up()
        self._cleared.give_up()
        self._do(self._requests.down(time.monotonic()))

    def engine_failed(self, error: EdgewiseError) -> None:
        self._failed.set()
        self._do(self._requests.fail_all(error, time.monotonic()))

    def engine_message(self, message: ToService) -> None:
        now = time.monotonic()
        news = self._chunks_of(message)  # first: nearly every message is one of these
        if news is not None:
            self._do(self._requests.chunks(*news, now))
            return
        match message:
            case Accepted(epoch=epoch, id=key):
                self._do(self._requests.accepted(epoch, key))
            case Refused(epoch=epoch, id=key):
                self._do(self._requests.refused(epoch, key, message.error(), now))
            case StatsReply(stats=stats):
                self._stats.answer(stats)
            case MemoryReply(memory=memory):
                self._memory.answer(memory)
            case CacheCleared(pages=pages):
                self._cleared.answer(pages)
            case Notice(kind=kind, message=text):
                epoch = 0 if self._supervisor is None else self._supervisor.epoch
                self.engine_event(EngineEvent(kind="notice", epoch=epoch, message=text, code=kind))
            case _:
                self._log.error("engine_message_unexpected", kind=type(message).__name__)

    def engine_unsent(self, message: Message, error: EdgewiseError) -> None:
        self._log.error("engine_message_unsent", kind=type(message).__name__, reason=error.message)
        if isinstance(message, (Submit, SubmitPicture, SubmitEncode)) and self._requests.epoch is not None:
            self._do(self._requests.refused(self._requests.epoch, message.id, error, time.monotonic()))

    def engine_event(self, event: EngineEvent) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001 - foreign code; logged, and supervision must go on
            self._log.exception("engine_event_callback_failed")

    # --- acting ------------------------------------------------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Deliver(key, chunk):
                    self._deliver(key, chunk)
                case Send(message):
                    if self._supervisor is not None:
                        self._supervisor.send(message)
                case Accept(key):
                    self._answer(key, None)
                case Refuse(key, error):
                    self._answer(key, error)
                    self._open.pop(key, None)
        self._settle()

    def _answer(self, key: str, error: EdgewiseError | None) -> None:
        consumer = self._open.get(key)
        if consumer is not None and not consumer.answer.done():
            consumer.answer.set_result(error)

    def _deliver(self, key: str, chunk: Any) -> None:
        consumer = self._open.get(key) if chunk.finish is None else self._open.pop(key, None)
        if self._is_progress(chunk) and self._supervisor is not None:
            self._supervisor.note_progress()
        if chunk.finish == "error":
            self._tell_failed(chunk)
        if consumer is not None:
            consumer.mailbox.put(chunk)

    def _tell_failed(self, chunk: Any) -> None:
        self.engine_event(
            EngineEvent(
                kind="request_failed",
                epoch=0 if self._supervisor is None else self._supervisor.epoch,
                message=chunk.error_message or "The request failed.",
                request_id=chunk.request_id,
                code=chunk.error_code,
            )
        )

    def _settle(self) -> None:
        """Keep the two flags in step with the book."""
        busy = len(self._requests) > 0
        if busy and not self._busy.is_set():
            self._busy.set()
            self._idle.clear()
        elif not busy and not self._idle.is_set():
            self._busy.clear()
            self._idle.set()

    async def _tick(self) -> None:
        """Deadlines and held requests; sleeps while nothing is open."""
        while True:
            await self._busy.wait()
            await asyncio.sleep(_CLOCK_S)
            try:
                self._do(self._requests.tick(time.monotonic()))
            except Exception:  # noqa: BLE001 - logged; the outermost frame of a task, without which no deadline would pass
                self._log.exception("engine_clock_broke")
