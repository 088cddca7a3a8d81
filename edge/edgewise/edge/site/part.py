"""Tells the site as a part of the device service, over the device's one link; takes back what it told once it is switched off.

What is retained expires at the broker (MQTT 5) unless it is told again in time: of a device that has died no value is left.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import EdgewiseError, LinkLost, NotPermitted
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task, within
from edgewise.core.settings import Settings
from edgewise.edge.agent.telemetry.meter import Meter
from edgewise.edge.agent.waker import Waker
from edgewise.edge.broker import BrokerLink
from edgewise.edge.governor.governor import Governor
from edgewise.edge.hardware.protocol import Hardware
from edgewise.edge.site.left import Left
from edgewise.edge.site.sensors import SENSORS, About, discovery, level_of, value_topic

log = get_logger(__name__)

_TURNS = 3  # values are void after so many turns in which they were not told again
_FAREWELL_S = 2.0
_ERRORS = frozenset({"engine_crashed", "engine_failed", "engine_request_failed", "mqtt_clone", "mqtt_unfit"})


class Site:
    """See docs/site.md. Without `agent.site_topics` and `agent.home_assistant` it only takes back what an earlier start left.

    Args:
        hardware: Asked in a thread.
    """

    def __init__(
        self, settings: Settings, deps: ApiDependencies, broker: BrokerLink, hardware: Hardware, governor: Governor
    ) -> None:
        agent = settings.agent
        self._deps = deps
        self._link = broker.link
        self._hardware = hardware
        self._governor = governor
        self._meter = Meter(deps, hardware)
        self._left = Left(settings.home / "site-topics.json")
        self._every_s = agent.telemetry_s
        self._told = agent.site_topics or agent.home_assistant
        self._discovered = agent.home_assistant
        self._present = agent.enabled
        self._name = agent.name
        self._level = level_of(agent.name, self._link.uid)
        self._announced = 0
        self._forbidden = False
        self._waker = Waker()
        self._task: asyncio.Task[None] | None = None
        broker.on_up(self._waker.wake)

    def __repr__(self) -> str:
        return f"Site({self._level}, told={self._told})"

    @property
    def routers(self) -> Sequence[APIRouter]:
        return ()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="site")

    async def stop(self) -> None:
        """The site hears that the device is gone, for as long as nobody says otherwise."""
        await end_task(self._task)
        if not self._told or not self._announced:
            return
        try:
            gone = self._link.publish(value_topic(self._level, "state"), b"offline", retain=True)
            await within(gone, _FAREWELL_S, lambda: LinkLost("The broker did not take the last message."))
        except EdgewiseError as error:
            log.info("site_not_told", reason=error.message)

    # --- the task ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                if await self._turn():
                    return
            except NotPermitted as error:
                self._refused(error)
            except EdgewiseError as error:
                log.info("site_not_told", reason=error.message)
            except Exception:  # outermost frame of a task
                log.exception("site_broke")
            await self._waker.wait(self._every_s)

    async def _turn(self) -> bool:
        """Whether nothing is left to do: it is switched off, and all is taken back."""
        if not self._told and not await asyncio.to_thread(self._left.topics):
            return True
        if not self._present:  # otherwise the agent begins the link, when it is ready for what arrives
            self._link.start()
        if not self._link.connected:
            return False
        if self._announced != self._link.connects:
            connects = self._link.connects
            await self._announce()
            self._announced = connects
        if self._told:
            await self._tell()
        return not self._told

    async def _announce(self) -> None:
        """Once for each connection: a broker may have lost what was retained."""
        wanted = await self._discovery() if self._discovered else {}
        values = {value_topic(self._level, one.key) for one in SENSORS} if self._told else set()
        left = await asyncio.to_thread(self._left.topics)
        keep = values | wanted.keys()
        await asyncio.to_thread(self._left.write, left | keep)
        for topic in sorted(left - keep):
            await self._link.publish(topic, b"", retain=True)
        for topic, payload in wanted.items():
            await self._link.publish(topic, payload, retain=True)
        await asyncio.to_thread(self._left.write, keep)
        if left - keep:
            self._deps.events.emit("site_topics_removed", f"{len(left - keep)} retained messages were taken back.")

    async def _discovery(self) -> dict[str, bytes]:
        family = (await asyncio.to_thread(self._hardware.describe)).get("family", "")
        about = About(
            uid=self._link.uid,
            level=self._level,
            name=self._name,
            version=self._deps.version,
            model=str(family),
            stale_s=self._stale_s,
            present=self._present,
        )
        return discovery(about)

    async def _tell(self) -> None:
        for key, value in (await self._values()).items():
            payload = value if isinstance(value, str) else json.dumps(value)
            await self._link.publish(
                value_topic(self._level, key), payload.encode(), retain=True, expiry_s=self._stale_s
            )

    async def _values(self) -> Mapping[str, Any]:
        """What is not known is not told."""
        sample = await self._meter.sample()
        loaded = [one.name for one in self._deps.models.status().models if one.state == "loaded"]
        told: dict[str, Any] = {
            "state": "draining" if self._deps.draining else "online",
            "governor": self._governor.show()["level"],
            "models": {"count": len(loaded), "loaded": loaded},
        }
        told |= {one.key: round(sample[one.sample], 2) for one in SENSORS if one.sample in sample}
        errors = [event for event in self._deps.events.since() if event.kind in _ERRORS]
        if errors:
            told["last_error"] = {"kind": errors[-1].kind, "message": errors[-1].message[:500]}
        return told

    @property
    def _stale_s(self) -> int:
        return max(1, math.ceil(_TURNS * self._every_s))

    def _refused(self, error: NotPermitted) -> None:
        if not self._forbidden:
            self._forbidden = True
            self._deps.events.emit("site_not_permitted", error.message)
            log.warning("site_not_permitted", reason=error.message, remedy="docs/site.md")
