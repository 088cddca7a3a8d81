"""The governor as a part of the device service: takes each reading of the hardware and acts when the level changes.

It costs the hot path nothing: a change is one message to each engine, and the engines look at it between two steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from edgewise.api.deps import ApiDependencies
from edgewise.api.responses import json_response
from edgewise.core.log import get_logger
from edgewise.core.settings_fleet import AgentSettings
from edgewise.edge.governor.levels import Level, Levels
from edgewise.edge.hardware.protocol import Readings
from edgewise.edge.hardware.watch import HardwareWatch
from edgewise.edge.placement.protocol import PowerState

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Measures:
    """What a level does.

    Attributes:
        share: Of an engine's batch, one sequence at least.
        pace: Share of the time in which pictures are drawn.
        cost: What a second of computing here counts for, against elsewhere.
    """

    share: float
    pace: float
    cost: float


MEASURES: Mapping[Level, Measures] = {
    Level.NORMAL: Measures(share=1.0, pace=1.0, cost=1.0),
    Level.WARM: Measures(share=0.5, pace=0.75, cost=1.25),
    Level.HOT: Measures(share=0.25, pace=0.5, cost=2.0),
    Level.CRITICAL: Measures(share=0.0, pace=0.25, cost=8.0),
}


class Governor:
    """Without a broker too: it belongs to the device. With `agent.governor` false it only shows what is measured.

    Attributes:
        readings: The newest reading; None before the first.
    """

    def __init__(self, settings: AgentSettings, deps: ApiDependencies, watch: HardwareWatch) -> None:
        self._deps = deps
        self._watch = watch
        self._levels = Levels(settings.max_temperature_c)
        self.readings: Readings | None = None
        self.enabled = settings.governor
        deps.readiness.show("governor", self.show)
        watch.on_reading(self._take)
        if self.enabled:
            gauge = deps.metrics.registry.gauge(
                "governor_level", "How far the device holds back: 0 normal to 3 critical"
            )
            gauge.set_function(lambda: float(self.level))

    def __repr__(self) -> str:
        return f"Governor({self._levels!r})"

    @property
    def level(self) -> Level:
        return self._levels.level

    @property
    def measures(self) -> Measures:
        return MEASURES[self.level]

    @property
    def routers(self) -> Sequence[APIRouter]:
        return (self._router(),)

    def start(self) -> None:
        """Nothing to begin: readings come from the watch."""

    async def stop(self) -> None:
        """Nothing to end."""

    def show(self) -> dict[str, Any]:
        """Level and reason, for /readyz and whoever looks at the hardware."""
        if not self.enabled:
            return {"level": "off", "reason": "agent.governor is false"}
        return {"level": self.level.word, "reason": self._levels.reason}

    def _take(self, readings: Readings) -> None:
        self.readings = readings
        if not self.enabled:
            return
        before = self.level
        if self._levels.observe(readings, self._deps.clock.monotonic(), saving=readings.saving):
            self._act(before)

    def _act(self, before: Level) -> None:
        measures, reason = self.measures, self._levels.reason
        self._deps.pressure.tell("heat", self.level, reason)
        if self._deps.limit_engines is not None:
            self._deps.limit_engines(measures.share, measures.pace)
        kind = "governor_slows" if self.level > before else "governor_eases"
        facts = {"level": self.level.word, "before": before.word, "reason": reason}
        log.info(kind, **facts)
        self._deps.events.emit(kind, f"The device is {self.level.word}, was {before.word}: {reason}.", **facts)

    def _router(self) -> APIRouter:
        router = APIRouter(tags=["Service"])

        @router.get("/edgewise/v1/hardware")
        async def hardware() -> Response:
            """The newest readings, the energy drawn since the start, and what the governor makes of it."""
            readings = None if self.readings is None else asdict(self.readings)
            shown = {"readings": readings, "joules": self._watch.joules(), "governor": self.show()}
            return json_response(shown)

        return router


class GovernedPower:
    """`placement.protocol.Power` of a device that a governor watches: what may run elsewhere goes there the sooner. It tells the
    newest reading that the governor has, and reads nothing itself."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor

    def read(self) -> PowerState:
        cost, known = self._governor.measures.cost, self._governor.readings
        if known is None:
            return PowerState(cost=cost)
        return PowerState(
            hottest_c=known.temperature_c,
            margin_c=known.margin_c,
            cost=cost,
            on_battery=known.on_battery,
            charge=known.charge,
            profile=known.power_mode,
        )
