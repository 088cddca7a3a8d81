"""Engines with a life of their own for tests of the pool: no processes, and every step of a life is ordered by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from edgewise.core.errors import EdgewiseError, EngineUnavailable
from edgewise.engine.api import CacheTier, EngineInfo, EngineState, EngineStats, MemoryReport
from edgewise.engine.config import EngineConfig
from edgewise.engine.events import EngineEvent
from edgewise.engine.pool.pool import ManagedEngine
from edgewise.engine.request import GenerateRequest
from edgewise.models.files import ModelFiles
from tests.fakes.engine import FakeEngine, FakeStream


class FakeManagedEngine:
    """A `FakeEngine` that is started, becomes ready when the works' gate is open, and is stopped."""

    def __init__(self, works: FakeWorks, config: EngineConfig, on_event: Callable[[EngineEvent], None]) -> None:
        self.config = config
        self.inner = FakeEngine()
        self.failure: EdgewiseError | None = None
        self.pid: int | None = None
        self.stopped = False
        self.limits: tuple[float, float] | None = None
        self._works = works
        self._on_event = on_event
        self._started = False

    @property
    def state(self) -> EngineState:
        if not self._started or self.stopped:
            return "stopped"
        return "ready" if self._works.gate.is_set() else "starting"

    @property
    def info(self) -> EngineInfo | None:
        return self.inner.info

    async def start(self) -> None:
        self._started = True
        self._works.running.append(self)
        assert sum(engine.config.memory_budget_bytes or 0 for engine in self._works.running) <= self._works.budget

    async def wait_ready(self, timeout_s: float | None = None) -> EngineInfo:
        del timeout_s
        await self._works.gate.wait()
        if self._works.refuse is not None:
            raise self._works.refuse
        info = self.inner.info
        assert info is not None
        return info

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.stopped = True
        self._works.running.remove(self)

    async def submit(self, request: GenerateRequest) -> FakeStream:
        assert not self.stopped
        return await self.inner.submit(request)

    async def stats(self) -> EngineStats:
        return await self.inner.stats()

    async def memory(self) -> MemoryReport:
        return await self.inner.memory()

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        return await self.inner.clear_cache(tier)

    def limit(self, share: float, pace: float) -> None:
        self.limits = (share, pace)

    def notify(self, code: str) -> None:
        """As the engine's process tells it."""
        self._on_event(EngineEvent(kind="notice", epoch=1, message="", code=code))

    def crash(self, message: str = "It was killed.", *, for_good: bool = False) -> None:
        """As the supervisor tells it: the failure is there before the event."""
        self.failure = EngineUnavailable(message)
        self._on_event(EngineEvent(kind="crashed", epoch=1, message=message))
        if for_good:
            self._on_event(EngineEvent(kind="failed", epoch=1, message=message))


@dataclass
class FakeWorks:
    """Makes engines.

    Attributes:
        budget: What those that run may never pass together.
        gate: Cleared, engines stay in loading.
        refuse: Every load ends with this.
        made: All engines, in the order in which they were made.
        running: Those that have been started and not stopped.
    """

    budget: int = 1 << 40
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    refuse: EdgewiseError | None = None
    made: list[FakeManagedEngine] = field(default_factory=list)
    running: list[FakeManagedEngine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def make(self, config: EngineConfig, on_event: Callable[[EngineEvent], None]) -> ManagedEngine:
        engine = FakeManagedEngine(self, config, on_event)
        self.made.append(engine)
        return engine


def config_of(name: str) -> EngineConfig:
    digest = "sha256:" + "0" * 64
    return EngineConfig(model=ModelFiles(name=name, digest=digest, format="gguf", paths={"m": Path("/nowhere")}))
