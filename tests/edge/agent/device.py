"""A device in this process: its agent and its link are real, its engine is a double."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from edgewise.api.deps import ApiDependencies
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.settings import LoadedSettings, load_settings
from edgewise.edge.agent.part import Agent
from edgewise.edge.broker import BrokerLink
from edgewise.edge.hardware.machine import Machine
from edgewise.edge.hardware.watch import HardwareWatch
from edgewise.pipeline.model import Models
from tests.e2e.broker import BrokerProcess
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model

DeviceFactory = Callable[..., Awaitable["Device"]]


class Device:
    """Attributes:
    ended: Exit codes with which the agent has ended the service.
    """

    def __init__(
        self,
        broker: BrokerProcess,
        home: Path,
        uid: str,
        *,
        engine: FakeEngine | None = None,
        clock: Clock | None = None,
        telemetry_s: float = 3600.0,
        **settings: Any,
    ) -> None:
        self.engine = engine or FakeEngine()
        self.loaded = self.load(broker, home, uid, telemetry_s=telemetry_s, **settings)
        self.deps = ApiDependencies(
            models=Models([fake_model(self.engine)]), clock=clock or SystemClock(), version="1.2.3"
        )
        self.ended: list[int] = []
        self.deps.end_service = self.ended.append
        self.broker = BrokerLink(self.loaded.settings, self.deps)
        self.hardware = HardwareWatch(lambda: Machine(home), self.deps.clock)
        self.agent = Agent(self.loaded, self.deps, self.broker, self.hardware)
        self.link = self.broker.link
        self.link._probe = False  # it has tests of its own, and takes seconds
        self._stopped = False

    @staticmethod
    def load(broker: BrokerProcess, home: Path, uid: str, *, telemetry_s: float, **settings: Any) -> LoadedSettings:
        home.mkdir(exist_ok=True)
        overrides = {
            "home": home,
            "mqtt.host": broker.host,
            "mqtt.port": broker.port,
            "mqtt.uid": uid,
            "agent.telemetry_s": telemetry_s,
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        return load_settings(overrides=overrides, environ={}, default_file=home / "none.toml")

    def start(self) -> None:
        self.broker.start()
        self.agent.start()

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        await self.agent.stop()
        await self.broker.stop()
        self.deps.state.close()

    async def crash(self) -> None:
        """As after a kill: nothing is said, nothing is tidied up, the broker publishes the will."""
        self._stopped = True
        self.broker.present(None)  # type: ignore[arg-type]
        if self.link.connected:
            connection = self.link.connection
            connection._client.socket().shutdown(2)  # type: ignore[union-attr]
            connection.end("killed")
        await self.broker.stop()
        await self.agent.stop()
        self.deps.state.close()

    def cut(self) -> None:
        """The link breaks without a goodbye, and is made again."""
        self.link.connection._client.socket().shutdown(2)  # type: ignore[union-attr]


async def settle(turns: int = 20) -> None:
    """Let whatever can go on go on."""
    for _ in range(turns):
        await asyncio.sleep(0)
