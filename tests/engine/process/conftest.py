"""The engine process under test: the real worker, supervisor and client around the deterministic core of tests/fakes/core.py."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

from edgewise.engine.client import EngineClient
from edgewise.engine.events import EngineEvent
from edgewise.engine.heartbeat import Limits
from edgewise.engine.restart import RestartRules
from edgewise.engine.timings import Timings

FAKE_CORE = Path(__file__).parents[2] / "fakes" / "core.py"

QUICK = Timings(
    heartbeat_s=0.05,
    limits=Limits(silence_s=60.0, step_s=60.0, load_silence_s=120.0, load_s=120.0),  # a busy machine starts slowly
    patience_s=120.0,
    restart=RestartRules(first_s=0.01, longest_s=0.05, give_up_after=1000, most_in_window=1000, slow_s=0.2),
)

StartEngine = Callable[..., Awaitable[EngineClient]]


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """tests/fakes/core.py as a module."""
    spec = importlib.util.spec_from_file_location("fake_core", FAKE_CORE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def quick() -> Timings:
    return QUICK


@pytest_asyncio.fixture
async def start_engine(fake: ModuleType, tmp_path: Path) -> AsyncIterator[StartEngine]:
    """Start clients; all are stopped at the end. `settings` are those of the fake core, other keywords the configuration's."""
    clients: list[EngineClient] = []

    async def start(
        *,
        timings: Timings = QUICK,
        settings: dict[str, Any] | None = None,
        events: list[EngineEvent] | None = None,
        wait: bool = True,
        **config: int,
    ) -> EngineClient:
        path = tmp_path / "fake.json"
        path.write_text(json.dumps(settings or {}))
        client = EngineClient(
            fake.fake_config(path, **config),
            factory=f"{FAKE_CORE}:build",
            timings=timings,
            on_event=None if events is None else events.append,
        )
        clients.append(client)
        await client.start()
        if wait:
            await client.wait_ready(30.0)
        return client

    yield start
    for client in clients:
        await client.stop()


@pytest.fixture
def descriptors() -> Callable[[], int]:
    """Counts this process's open file descriptors; what earlier tests left to the garbage collector is closed before."""
    gc.collect()
    return lambda: len(list(Path("/proc/self/fd").iterdir()))
