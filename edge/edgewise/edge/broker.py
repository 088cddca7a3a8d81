"""The device's one link to its broker. All that speaks MQTT here shares it: two clients of one name evict each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import APIRouter

from edgewise.api.deps import ApiDependencies
from edgewise.core.settings import Settings
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
        self.link = make_link(settings.mqtt, settings.home, device_name(settings), on_event=self._happened)

    def __repr__(self) -> str:
        return f"BrokerLink({self.link.uid}, connected={self.link.connected})"

    @property
    def routers(self) -> Sequence[APIRouter]:
        return ()

    def start(self) -> None:
        """Nothing to do: a device that has nothing to say to the broker does not connect to it."""

    async def stop(self) -> None:
        await self.link.stop()

    def on_up(self, call: Callable[[], None]) -> None:
        """Call this each time the link stands again; it must not raise."""
        self._on_up.append(call)

    def _happened(self, event: LinkEvent) -> None:
        self._emit(f"mqtt_{event.kind}", event.message)
        if event.kind == "up":
            for call in self._on_up:
                call()
