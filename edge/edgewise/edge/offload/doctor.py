"""What `edgewise doctor` says of cloud and broker: are they reached, do they take the key, what do both machines have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from edgewise.core.checks import Check
from edgewise.core.errors import EdgewiseError, EngineFault, LinkLost, NotAuthenticated, NotPermitted
from edgewise.core.settings import Settings
from edgewise.edge.offload.http import HttpTransport
from edgewise.edge.offload.make import device_name, http_transport, peer_transport
from edgewise.models.store import Store
from edgewise.wire.messages import CloudInfo
from edgewise.wire.mqtt.link import LinkEvent
from edgewise.wire.mqtt.make import broker_of
from edgewise.wire.mqtt.note import NAME as NOTE
from edgewise.wire.mqtt.note import read_note
from edgewise.wire.mqtt.probe import probe_broker

_CLOCK_S = 120.0
"""Certificates and logs suffer from clocks that differ by more; no decision of ours compares them."""


def check_cloud(settings: Settings) -> Iterator[Check]:
    """One check where no cloud is configured; else of the link, the clock and the models."""
    if settings.cloud.url is None:
        yield Check("cloud", "ok", "not configured: everything runs on this device")
        return
    try:
        transport = http_transport(settings)
    except EdgewiseError as error:
        yield Check("cloud", "fail", error.message, "put the key that `edgewise cloud keys new` printed into that file")
        return
    started = time.monotonic()
    try:
        info = asyncio.run(_ask(transport))
    except EdgewiseError as error:
        yield _failed(settings.cloud.url, error)
        return
    spent_ms = 1000 * (time.monotonic() - started)
    detail = f"{settings.cloud.url}: {info.name} takes the key of '{info.tenant}', {spent_ms:.0f} ms"
    yield Check("cloud", "ok", detail)
    yield from _bound(settings, info)
    yield _clock(transport.ahead_s)
    yield _models(settings, info)


def check_peer(settings: Settings) -> Iterator[Check]:
    """Whether the appliance that stages may run on is reached and belongs to the site, where one is configured."""
    url = settings.peers.engine
    if url is None:
        return
    try:
        info = asyncio.run(_ask(peer_transport(settings)))
    except LinkLost as error:
        remedy = (
            "check peers.engine, the network and that `edgewise cloud` runs there; until then nothing is sent there"
        )
        yield Check("peer", "warn", f"{url}: {error.message}", remedy)
    except EdgewiseError as error:
        remedy = "`edgewise cloud keys new` there makes a key; put it into the file that peers.engine_key_file names"
        yield Check("peer", "fail", f"{url}: {error.message}", remedy)
    else:
        if not info.site:
            yield Check(
                "peer", "fail", f"{url}: {info.name} does not say that it is of this site", "set intake.site there"
            )
            return
        yield Check("peer", "ok", f"{url}: {info.name} takes the key of '{info.tenant}' and what is labelled 'site'")


def check_broker(settings: Settings) -> Iterator[Check]:
    """Whether the configured broker can be used, where there is one. The running service is asked, if there is one: a second
    client of its name would end its connection."""
    if settings.mqtt.host is None:
        return
    where = f"{settings.mqtt.host}:{settings.mqtt.port}"
    told = read_note(settings.home / NOTE)
    if told is not None:
        yield _told(where, told)
        return
    try:
        probe = asyncio.run(probe_broker(broker_of(settings.mqtt, device_name(settings))))
        probe.check()
    except LinkLost as error:
        yield Check("broker", "warn", error.message, "check mqtt.host, mqtt.port and the network")
    except EdgewiseError as error:
        yield Check("broker", "fail", error.message, "see docs/wire.md for what a broker needs")
    else:
        lacks = f", without {' and '.join(probe.weak)}" if probe.weak else ""
        yield Check("broker", "ok", f"{where} can be used{lacks}")


def _told(where: str, event: LinkEvent) -> Check:
    if event.kind == "up":
        return Check("broker", "ok", f"{where}: the running service is connected")
    if event.kind == "down":
        remedy = "check mqtt.host, mqtt.port and the network"
        return Check("broker", "warn", f"{where}: the running service has lost it: {event.message}", remedy)
    detail = f"{where}: the running service cannot use it: {event.message}"
    return Check("broker", "fail", detail, "see docs/wire.md for what a broker needs")


async def _ask(transport: HttpTransport) -> CloudInfo:
    try:
        return await transport.info()
    finally:
        await transport.close()


def _failed(url: str, error: EdgewiseError) -> Check:
    detail = f"{url}: {error.message}"
    if isinstance(error, (NotAuthenticated, NotPermitted)):
        remedy = "`edgewise cloud keys new` on the cloud makes a key; set it as cloud.key or in cloud.key_file"
        return Check("cloud", "fail", f"{url} refuses the key: {error.message}", remedy)
    if isinstance(error, LinkLost):
        remedy = "check cloud.url, the network and that `edgewise cloud` runs there; until then everything runs here"
        return Check("cloud", "warn", detail, remedy)
    if isinstance(error, EngineFault):
        return Check("cloud", "fail", detail, "let cloud.url name an Edgewise cloud engine of the same version")
    return Check("cloud", "fail", detail)


def _bound(settings: Settings, info: CloudInfo) -> Iterator[Check]:
    """Whether the key is meant for this device, and whether the cloud knows it by one name over both transports."""
    device = device_name(settings)
    remedy = f"`edgewise cloud keys new NAME --device {device}` on the cloud makes a key for this device"
    if info.device not in (None, device):
        detail = f"it is bound to the device '{info.device}', and this one is '{device}': the cloud refuses its work"
        yield Check("cloud key", "fail", detail, remedy)
    elif info.device is None and settings.cloud.transport == "auto" and settings.mqtt.host is not None:
        detail = "it is bound to no device: an answer that changes from HTTP to MQTT becomes a second job there"
        yield Check("cloud key", "warn", detail, remedy)


def _clock(ahead_s: float | None) -> Check:
    if ahead_s is None:
        return Check("cloud clock", "warn", "the cloud does not tell its time")
    detail = f"the cloud's clock is {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}"
    if abs(ahead_s) > _CLOCK_S:
        return Check("cloud clock", "warn", detail, "set the clock of whichever is wrong: certificates depend on it")
    return Check("cloud clock", "ok", detail)


def _models(settings: Settings, info: CloudInfo) -> Check:
    """Work moves between both for models with the same files only."""
    here = {manifest.digest: manifest.name for manifest in Store(settings.home / "models").manifests()}
    by_name = set(here.values())
    common = [one.model for one in info.models if one.digest in here or (one.digest is None and one.model in by_name)]
    only = [one.model for one in info.models if one.model not in common]
    listed = f"in common: {', '.join(common) or 'none'}; only there: {', '.join(only) or 'none'}"
    if common or only:
        return Check("cloud models", "ok", listed)
    return Check("cloud models", "warn", "the cloud has no model", "`edgewise models pull NAME` on the cloud")
