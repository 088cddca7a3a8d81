"""Carries out what the book decides: engine processes are started and ended here, and requests wait here for theirs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from edgewise.core.errors import (
    DeadlineExceeded,
    EdgewiseError,
    EngineFault,
    EngineUnavailable,
    ModelNotFound,
    ShuttingDown,
)
from edgewise.core.log import get_logger
from edgewise.core.modality import Modality
from edgewise.engine.api import CacheTier, EngineState, EngineStats, MemoryReport, TokenStream
from edgewise.engine.client import EngineClient
from edgewise.engine.encoders.climbs import BEGUN, ENDED
from edgewise.engine.events import EngineEvent
from edgewise.engine.fit import Needs
from edgewise.engine.messages import AnyConfig
from edgewise.engine.pool.book import PoolBook
from edgewise.engine.pool.entry import Action, Entry, Fail, Grant, Load, Unload, again
from edgewise.engine.pool.shares import DeviceShares
from edgewise.engine.request import GenerateRequest

log = get_logger(__name__)


class ManagedEngine(Protocol):
    """An engine of any kind with its life; `engine.client.EngineClient` is one."""

    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> Any: ...

    async def submit(self, request: Any, /) -> Any: ...

    async def stats(self) -> EngineStats: ...

    async def memory(self) -> MemoryReport: ...

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]: ...

    def limit(self, share: float, pace: float) -> None: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def failure(self) -> EdgewiseError | None: ...

    async def start(self) -> None: ...

    async def wait_ready(self, timeout_s: float | None = None) -> Any: ...

    async def stop(self) -> None: ...


MakeEngine = Callable[[Any, Callable[[EngineEvent], None]], ManagedEngine]
"""Takes a configuration of any kind, `engine.messages.AnyConfig`."""
Told = Callable[[str, EngineEvent], None]
Unloaded = Callable[[str], None]


@dataclass(slots=True)
class _Member:
    """What the book does not need to know of a model: its configuration, its engine, and the tasks and requests around it.

    Attributes:
        config: How its engine is built; kept only while somebody wants it, since it carries the vocabulary.
        load: The load that is under way.
        ending: The engine's stop that is under way.
        started: Set while there is an engine that can be asked or waited for.
        crashed: Set when the engine has died.
        waiting: One for each waiter that the book counts.
    """

    config: AnyConfig | None
    engine: ManagedEngine | None = None
    load: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    crashed: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: list[asyncio.Future[ManagedEngine]] = field(default_factory=list)


BeforeSubmit = Callable[
    [EngineClient, GenerateRequest], Awaitable[tuple[GenerateRequest, Callable[[TokenStream], TokenStream]]]
]
"""Asked of each text request when its model is loaded. It raises nothing of its own; it returns the request to submit instead,
and what wraps the answer."""


class EnginePool:
    """Engines by key under one memory budget. Used from one event loop.

    Args:
        book: The rules.
        make: Makes an engine that is not started yet.
        on_event: Told of every engine's events of supervision, with the name of its model.
        on_unloaded: Told of a model's key when its engine is gone and nobody waits for it.
        now: A monotonic clock.

    Attributes:
        before_submit: See `BeforeSubmit`; None asks nobody.
        shares: What callers have had of the device, over all engines.
    """

    def __init__(
        self,
        book: PoolBook,
        make: MakeEngine,
        *,
        on_event: Told,
        on_unloaded: Unloaded = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.book = book
        self._make = make
        self._on_event = on_event
        self.on_unloaded = on_unloaded
        self.before_submit: BeforeSubmit | None = None
        self._now = now
        self._members: dict[str, _Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._limit: tuple[float, float] | None = None
        self.loads = 0
        self.evictions = 0
        self.shares = DeviceShares()

    def __repr__(self) -> str:
        return f"EnginePool({self.book!r})"

    # --- models ------------------------------------------------------------------------------------------------------

    def add(
        self,
        key: str,
        config: AnyConfig,
        needs: Needs,
        *,
        pinned: bool,
        keep_alive_s: float,
        modality: Modality = Modality.CHAT,
    ) -> None:
        """See `PoolBook.add`."""
        self.book.add(key, config.model.name, needs, pinned=pinned, keep_alive_s=keep_alive_s, modality=modality)
        self._members[key] = _Member(config)

    def retire(self, key: str) -> None:
        """See `PoolBook.retire`."""
        self._do(self.book.retire(key))

    def start_pinned(self) -> None:
        """Begin to load the pinned models; returns at once."""
        self._do(self.book.start_pinned())

    def unload(self, key: str) -> None:
        """See `PoolBook.unload`."""
        self._do(self.book.unload(key))

    def limit(self, share: float, pace: float) -> None:
        """See `engine.process_client.ProcessClient.limit`: for all engines, and those that are loaded later."""
        self._limit = (share, pace)
        for member in self._members.values():
            if member.engine is not None:
                member.engine.limit(share, pace)

    def engine(self, key: str) -> ManagedEngine | None:
        """Its engine, if there is one at present."""
        member = self._members.get(key)
        return None if member is None else member.engine

    async def wait_ready(self, key: str) -> Any:
        """Wait for a pinned model's engine. Raises what `EngineClient.wait_ready` raises."""
        member = self._members[key]
        await member.started.wait()
        if member.engine is None:
            raise EngineUnavailable("The engine has been stopped.")
        return await member.engine.wait_ready()

    async def close(self) -> None:
        """Fail who waits, end every engine, also one that is loading, and wait until they are gone."""
        self._closed = True
        self._do(self.book.close(ShuttingDown("The service is shutting down.", retry_after_s=10.0)))
        if self._timer is not None:
            self._timer.cancel()
        for member in self._members.values():
            if member.load is not None:
                member.load.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(member) for member in self._members.values()))

    # --- requests ----------------------------------------------------------------------------------------------------

    async def acquire(self, key: str, config: AnyConfig, timeout_s: float | None = None) -> ManagedEngine:
        """Wait until the model is loaded; it stays so until `release` is called, once for each `acquire` that returned.

        Args:
            config: How its engine is built if it is not loaded; the memory budget is filled in here.
            timeout_s: The request's own deadline.

        Raises:
            OutOfMemory: It can never fit.
            EngineUnavailable: There was no room for it within the time that requests wait.
            DeadlineExceeded: `timeout_s` have passed.
            EdgewiseError: Why it could not be loaded.
        """
        member = self._members.get(key)
        if member is None:
            raise ModelNotFound("The model was removed or replaced while it was being asked: ask again.", param="model")
        if self._closed:
            raise ShuttingDown("The service is shutting down.", retry_after_s=10.0)
        place: asyncio.Future[ManagedEngine] = asyncio.get_running_loop().create_future()
        actions = self.book.want(key, self._now())
        member.config = config
        member.waiting.append(place)
        self._do(actions)
        try:
            await asyncio.wait({place}, timeout=timeout_s)
        except asyncio.CancelledError:
            self._give_up(key, member, place)
            raise
        if not place.done():
            self._give_up(key, member, place)
            raise DeadlineExceeded(f"The request's deadline of {timeout_s:g} s has passed before the model was loaded.")
        return place.result()

    def release(self, key: str) -> None:
        """The request that acquired the model is over."""
        self._do(self.book.release(key, self._now()))

    def _give_up(self, key: str, member: _Member, place: asyncio.Future[ManagedEngine]) -> None:
        if not place.done():
            member.waiting.remove(place)
            self._do(self.book.leave(key))
        elif place.exception() is None:
            self.release(key)

    # --- acting ------------------------------------------------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            member = self._members[action.key]
            match action:
                case Load(key, budget) if not self._closed:
                    member.load = self._spawn(self._load(key, member, budget), f"load-{key}")
                case Unload() if not self._closed:
                    self._spawn(self._unload(action, member), f"unload-{action.key}")
                case Grant():
                    self._grant(member)
                case Fail(_, error):
                    places, member.waiting = member.waiting, []
                    for place in places:
                        place.set_exception(again(error))
        self._set_timer()
        if not self._closed:
            for key in [key for key in self._members if self.book.get(key) is None]:
                del self._members[key]

    def _grant(self, member: _Member) -> None:
        assert member.engine is not None
        places, member.waiting = member.waiting, []
        for place in places:
            place.set_result(member.engine)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load(self, key: str, member: _Member, budget: int) -> None:
        """One load from start to ready or failed. Pinned engines are left to their supervisor, which never gives up."""
        entry = self._entry(key)
        log.info("model_loading", model=entry.name, budget_bytes=budget)
        self.loads += 1
        member.crashed = asyncio.Event()
        assert member.config is not None
        config = replace(member.config, memory_budget_bytes=budget)
        failure: EdgewiseError | None = None
        try:
            engine = member.engine = self._make(config, partial(self._event, key, member, entry.name))
            if self._limit is not None:
                engine.limit(*self._limit)
            await engine.start()
            member.started.set()
            if not entry.pinned:
                await _ready_or_crashed(engine, member.crashed)
        except EdgewiseError as error:
            log.warning("model_not_loaded", model=entry.name, code=error.code, reason=error.message)
            failure = error
        except Exception as error:  # outermost frame of a task: whoever waits for the model must hear of it
            log.exception("model_load_broke", model=entry.name)
            failure = EngineFault(f"The model could not be loaded: an internal error ({type(error).__name__}).")
        if failure is not None:
            await self._end(member)
        member.load = None
        now = self._now()
        self._do(self.book.loaded(key, now) if failure is None else self.book.failed(key, failure, now))

    async def _unload(self, action: Unload, member: _Member) -> None:
        entry = self._entry(action.key)
        log.info("model_unloading", model=entry.name, why=action.why)
        self.evictions += action.why in ("evicted", "resized")
        if member.load is not None:
            member.load.cancel()
            await asyncio.wait({member.load})
            member.load = None
        await self._end(member)
        actions = self.book.unloaded(action.key)
        if entry.state == "cold":
            member.config = None
            self.on_unloaded(action.key)
        self._do(actions)

    async def _end(self, member: _Member) -> None:
        """Returns when the engine's process is gone. A cancelled caller does not keep it from ending."""
        member.started.clear()
        if member.engine is not None and member.ending is None:
            member.ending = self._spawn(member.engine.stop(), "end-engine")
        ending = member.ending
        if ending is not None:
            await asyncio.wait({ending})
            if member.ending is ending:
                member.engine = member.ending = None

    def _entry(self, key: str) -> Entry:
        entry = self.book.get(key)
        assert entry is not None
        return entry

    def _event(self, key: str, member: _Member, name: str, event: EngineEvent) -> None:
        self._on_event(name, event)
        if event.kind in ("crashed", "failed"):
            member.crashed.set()
        if event.kind == "notice" and event.code in (BEGUN, ENDED):
            self.book.improving(key, begun=event.code == BEGUN)
        elif event.kind in ("starting", "crashed", "failed", "stopped"):
            self.book.improving(key, begun=False)
        entry = self.book.get(key)
        if event.kind == "failed" and entry is not None and not entry.pinned:
            failure = None if member.engine is None else member.engine.failure
            # In a turn of its own: the engine has still to tell its requests.
            asyncio.get_running_loop().call_soon(lambda: self._broken(key, failure or EngineUnavailable(event.message)))

    def _broken(self, key: str, error: EdgewiseError) -> None:
        if self.book.get(key) is not None and not self._closed:
            self._do(self.book.broken(key, error, self._now()))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.book.next_tick()
        if at is not None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self.book.tick(self._now()))


async def _ready_or_crashed(engine: ManagedEngine, crashed: asyncio.Event) -> None:
    """Return when the engine is ready. Raises why it has failed, at its first crash: whoever asks next tries again."""
    ready = asyncio.ensure_future(engine.wait_ready())
    crash = asyncio.ensure_future(crashed.wait())
    try:
        await asyncio.wait({ready, crash}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            return
        raise again(engine.failure or EngineUnavailable("The engine ended while it was loading the model."))
    finally:
        ready.cancel()
        crash.cancel()
        await asyncio.gather(ready, crash, return_exceptions=True)
