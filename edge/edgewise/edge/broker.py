"""The device's one link to its broker. All that speaks MQTT here shares it: two clients of one name evict each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter

from edgewise.api.deps import ApiDependencies
from edgewise.core.settings import Settings
from edgewise.edge.agent.presence import Presence, last_will
from edgewise.edge.offload.make import device_name
from edgewise.wire.mqtt.link import LinkEvent
from edgewise.wire.mqtt.make import make_link


class BrokerLink:
    """The link as a part of the service, which ends it last. Whoever needs it first starts it.

    Raises:
        ConfigError: The password cannot be read.
    """

    def __init__(self, settings: Settings, deps: ApiDependencies) -> None:
        self._emit = deps.events.emit
        self._on_up: list[Callable[[], None]] = []
        self._presence: Presence | None = None
        name = device_name(settings)
        hooks: dict[str, Any] = {}
        if settings.agent.enabled:
            hooks = {"will": partial(last_will, name), "birth": self._born}
        self.link = make_link(settings.mqtt, settings.home, name, on_event=self._happened, **hooks)

    def __repr__(self) -> str:
        return f"BrokerLink({self.link.uid}, connected={self.link.connected})"

    @property
    def routers(self) -> Sequence[APIRouter]:
        return ()

    def start(self) -> None:
        """Nothing to do: a device that has nothing to say to the broker does not connect to it."""

    async def stop(self) -> None:
        await self.link.stop(None if self._presence is None else self._presence.farewell())

    def present(self, presence: Presence) -> None:
        """Say this at each connect and at the end. Without it a device is not there for a fleet."""
        self._presence = presence

    def on_up(self, call: Callable[[], None]) -> None:
        """Call this each time the link stands again; it must not raise."""
        self._on_up.append(call)

    async def _born(self) -> None:
        if self._presence is not None:
            await self._presence.born()

    def _happened(self, event: LinkEvent) -> None:
        self._emit(f"mqtt_{event.kind}", event.message)
        if event.kind == "up":
            for call in self._on_up:
                call()
