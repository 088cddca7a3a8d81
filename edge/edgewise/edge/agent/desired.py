"""The twin on this device: what of its documents the agent itself brings into force, and what it reports."""

from __future__ import annotations

from collections.abc import Callable

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import EdgewiseError, LinkLost
from edgewise.core.log import get_logger, set_log_level
from edgewise.core.settings import LoadedSettings
from edgewise.core.sqlite import Database
from edgewise.edge.agent.ops.lifecycle import RESTART_CODE
from edgewise.edge.agent.telemetry.batches import GROUP, TelemetryTask
from edgewise.edge.agent.uplink.uplink import Uplink
from edgewise.edge.twin.config import ConfigPart
from edgewise.edge.twin.installer import Installer
from edgewise.edge.twin.models import ModelsPart
from edgewise.edge.twin.policy import Policy, PolicyPart
from edgewise.edge.twin.software import SoftwarePart
from edgewise.edge.twin.store import Shadows
from edgewise.edge.twin.trial import prove
from edgewise.edge.twin.twin import Twin
from edgewise.wire import topics
from edgewise.wire.envelope import encode
from edgewise.wire.fleet import ModelState, Reported
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)

_AWAY_S = 60.0  # what is announced for a restart for new settings


class DesiredState:
    """Args:
    ends: Told why the service ends and for how long.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        deps: ApiDependencies,
        link: Link,
        database: Database,
        uplink: Uplink,
        telemetry: TelemetryTask,
        installer: Installer,
        *,
        ends: Callable[[str, float | None], None],
    ) -> None:
        self._loaded = loaded
        self._deps = deps
        self._link = link
        self._uplink = uplink
        self._telemetry = telemetry
        self._installer = installer
        self._ends = ends
        self._period_s = loaded.settings.agent.telemetry_s
        self._models: list[ModelState] = []
        self._policy = PolicyPart(self._policy_in_force)
        self._config = ConfigPart(loaded, deps.clock, live=self._config_in_force, restart=self._restart_if_may)
        models = ModelsPart(deps.models, installer)
        parts = (self._config, models, SoftwarePart(deps.version), self._policy)
        self.twin = Twin(parts, Shadows(database), deps.clock, publish=self._publish, alarm=self._alarm)

    async def start(self) -> None:
        """Raises `StorageError`: call it again."""
        await self.twin.load()
        self.twin.start()

    async def prove(self) -> None:
        """Wait for the answer that proves the settings that are in force. Without one they are given up, and the service starts
        again without them."""
        if await prove(self._deps, self._loaded.settings.home):
            self._config.proven = True
            self.twin.again("config")
        elif self._deps.end_service is not None:
            self._ends("its settings did not work; it goes back to those of before", _AWAY_S)
            self._deps.end_service(RESTART_CODE)

    async def report_changes(self) -> None:
        """Say what has changed without the fleet: models that somebody brought, removed, loaded."""
        states = await self._installer.states()
        if states != self._models:
            self._models = states
            await self.twin.report("models")

    # --- into force ------------------------------------------------------------------------------------------------------

    def _policy_in_force(self, policy: Policy) -> None:
        daily = policy.budgets.daily_bytes
        self._uplink.budget.daily_bytes = self._loaded.settings.agent.daily_bytes if daily is None else daily
        self._set_pace()

    def _config_in_force(self, wanted: LoadedSettings) -> None:
        set_log_level(wanted.settings.log.level)
        self._period_s = wanted.settings.agent.telemetry_s
        self._set_pace()

    def _set_pace(self) -> None:
        told = self._policy.policy.telemetry
        wanted = told.groups is None or GROUP in told.groups
        self._telemetry.change(told.period_s or self._period_s, wanted=wanted)

    def _restart_if_may(self) -> bool:
        if self._policy.policy.restart != "auto" or self._deps.end_service is None:
            return False
        log.info("restarting", reason="new settings")
        self._ends("restart for new settings", _AWAY_S)
        self._deps.end_service(RESTART_CODE)
        return True

    # --- reported --------------------------------------------------------------------------------------------------------

    async def _publish(self, name: str, reported: Reported) -> None:
        topic = topics.reported(self._link.uid, name)
        try:
            await self._link.publish(topic, encode(self._link.sealer.seal(reported)))
        except LinkLost as error:
            log.debug("not_reported", shadow=name, reason=error.message)  # it is said at the next connect
        except EdgewiseError as error:
            log.warning("not_reported", shadow=name, reason=error.message)

    async def _alarm(self, name: str, reason: str) -> None:
        await self._uplink.event("desired_refused", "warning", f"{name}: {reason}", shadow=name)
