"""The device's composition root: what a service is extended with to be a device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import EdgewiseError
from edgewise.core.files import alone
from edgewise.core.settings import LoadedSettings, Settings, settings_fields
from edgewise.edge.agent.ops.lifecycle import RESTART_CODE
from edgewise.edge.agent.part import Agent
from edgewise.edge.broker import BrokerLink
from edgewise.edge.enrol.folder import with_enrolment
from edgewise.edge.enrol.renewal import Renewal
from edgewise.edge.governor.governor import GovernedPower, Governor
from edgewise.edge.hardware.choose import choose_hardware
from edgewise.edge.hardware.watch import HardwareWatch
from edgewise.edge.offload.make import make_cloud, make_peer
from edgewise.edge.outbox.part import Outbox
from edgewise.edge.placement.measure import LinkMeter
from edgewise.edge.placement.planner import PlacementPlanner
from edgewise.edge.placement.protocol import Far
from edgewise.edge.site.part import Site
from edgewise.edge.twin.trial import begin_trial, end_trial
from edgewise.pipeline.plan import Outside
from edgewise.serving import service
from edgewise.serving.service import Part


def serve(loaded: LoadedSettings) -> int:
    """Run the device service until a stop signal; see `serving.service.serve`. Settings of a fleet that keep it from starting are
    given up: it is to be started again without them.

    Raises:
        FolderInUse: Another device service uses the state directory.
    """
    home = loaded.settings.home
    with alone(home, "device.lock", "device service"):
        loaded = begin_trial(with_enrolment(loaded))
        try:
            return service.serve(loaded, partial(device_parts, loaded=loaded))
        except EdgewiseError as error:
            if error.retryable or loaded.fleet_fault is not None or not end_trial(home, error):
                raise
            return RESTART_CODE


def device_parts(settings: Settings, deps: ApiDependencies, loaded: LoadedSettings | None = None) -> Iterator[Part]:
    """Hardware, governor, broker, placement, offload, outbox, agent and the certificate, as far as they are configured."""
    hardware = HardwareWatch(partial(choose_hardware, settings.home), deps.clock)
    yield hardware
    governor = Governor(settings.agent, deps, hardware)
    yield governor
    meter, peer_meter = LinkMeter(), LinkMeter()
    broker = None if settings.mqtt.host is None else BrokerLink(settings, deps)
    if broker is not None:
        yield broker
    peer = make_peer(settings, deps, peer_meter)  # first: what the site has is not asked of the cloud
    if peer is not None:
        yield peer
    cloud = make_cloud(settings, deps, meter, None if broker is None else broker.link)
    if cloud is not None:
        yield cloud
    far: dict[Outside, Far] = {}
    if cloud is not None:
        far["cloud"] = Far(cloud, meter)
    if peer is not None:
        far["peer"] = Far(peer, peer_meter)
    if far:
        power = GovernedPower(governor)
        deps.planner = PlacementPlanner(settings.placement, far, deps.receipts, power=power, clock=deps.clock)
    yield Outbox(settings, deps, link=cloud, broker=broker)
    if broker is not None:
        yield Site(settings, deps, broker, hardware, governor)
    if broker is not None and settings.agent.enabled:
        told = loaded or LoadedSettings(settings, dict.fromkeys(settings_fields(), "default"))
        yield Agent(told, deps, broker, hardware)
    yield Renewal(settings.home, deps.events.emit, clock=deps.clock)
