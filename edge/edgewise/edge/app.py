"""The device's composition root: what a service is extended with to be a device."""

from __future__ import annotations

from collections.abc import Sequence

from edgewise.api.deps import ApiDependencies
from edgewise.core.files import alone
from edgewise.core.settings import LoadedSettings, Settings
from edgewise.edge.agent.part import Agent
from edgewise.edge.broker import BrokerLink
from edgewise.edge.offload.make import make_cloud
from edgewise.edge.outbox.part import Outbox
from edgewise.edge.placement.measure import LinkMeter
from edgewise.edge.placement.planner import PlacementPlanner
from edgewise.edge.placement.power import LinuxPower
from edgewise.serving import service
from edgewise.serving.service import Part


def serve(loaded: LoadedSettings) -> int:
    """Run the device service until a stop signal; see `serving.service.serve`.

    Raises:
        FolderInUse: Another device service uses the state directory.
    """
    with alone(loaded.settings.home, "device.lock", "device service"):
        return service.serve(loaded, device_parts)


def device_parts(settings: Settings, deps: ApiDependencies) -> Sequence[Part]:
    """Broker, placement, offload, outbox and agent, as far as they are configured."""
    parts: list[Part] = []
    meter = LinkMeter()
    broker = None if settings.mqtt.host is None else BrokerLink(settings, deps)
    if broker is not None:
        parts.append(broker)
    cloud = make_cloud(settings, deps, meter, None if broker is None else broker.link)
    if cloud is not None:
        deps.planner = PlacementPlanner(
            settings.placement,
            cloud,
            deps.receipts,
            meter=meter,
            power=LinuxPower(deps.clock),
            clock=deps.clock,
        )
        parts.append(cloud)
    parts.append(Outbox(settings, deps, link=cloud, broker=broker))
    if broker is not None and settings.agent.enabled:
        parts.append(Agent(settings, deps, broker))
    return parts
