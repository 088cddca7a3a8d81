"""The cloud of a device, made of its settings."""

from __future__ import annotations

import re
import secrets
import socket

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import ConfigError, LinkLost
from edgewise.core.files import atomic_write, read_secret, translate_os_errors
from edgewise.core.settings import Settings
from edgewise.core.settings_links import CloudSettings
from edgewise.core.tls_time import FILE as FLOOR
from edgewise.core.tls_time import TimeFloor
from edgewise.edge.offload.cloud import Cloud
from edgewise.edge.offload.faces import FaceStore
from edgewise.edge.offload.health import Health
from edgewise.edge.offload.http import HttpTransport
from edgewise.edge.offload.models import ModelsWithCloud
from edgewise.edge.offload.mqtt import MqttTransport
from edgewise.edge.offload.transport import Transport
from edgewise.edge.placement.protocol import Meter
from edgewise.wire.mqtt.link import Link


def make_cloud(
    settings: Settings, deps: ApiDependencies, meter: Meter | None = None, broker: Link | None = None
) -> Cloud | None:
    """None where no cloud is configured. With one, `deps.models` are those of both.

    Args:
        meter: Told of what crosses the link.
        broker: The device's link to the broker; None where none is configured.

    Raises:
        ConfigError: A key cannot be read, or a broker is missing; the message names the setting.
    """
    if settings.cloud.url is None and settings.cloud.transport != "mqtt":
        return None
    device = device_name(settings)
    http = None if settings.cloud.url is None else http_transport(settings, meter)
    transports: list[Transport] = [http] if http is not None and settings.cloud.transport != "mqtt" else []
    if settings.cloud.transport != "http" and broker is not None:
        transports.append(MqttTransport(broker, meter=meter))
    if not transports:
        raise ConfigError("cloud.transport is 'mqtt', but mqtt.host is not set: name the broker")
    cloud = Cloud(
        settings.cloud,
        Health(transports, emit=deps.events.emit, meter=meter),
        device=device,
        tokenizer=lambda name: deps.models.get(name).tokenizer,
    )
    faces = FaceStore(settings.home / "faces", no_faces if http is None else http.fetch)
    deps.models = ModelsWithCloud(deps.models, cloud, faces)
    return cloud


def make_peer(settings: Settings, deps: ApiDependencies, meter: Meter | None = None) -> Cloud | None:
    """The appliance of the same site that stages may run on; None where none is configured. With one, `deps.models` are those
    of both.

    Raises:
        ConfigError: Its key cannot be read.
    """
    if settings.peers.engine is None:
        return None
    transport = peer_transport(settings, meter)
    peer = Cloud(
        settings.cloud,
        Health([transport], emit=deps.events.emit, meter=meter, place="peer"),
        device=device_name(settings),
        tokenizer=lambda name: deps.models.get(name).tokenizer,
        place="peer",
    )
    deps.models = ModelsWithCloud(deps.models, peer, FaceStore(settings.home / "faces-of-peer", transport.fetch))
    return peer


def device_name(settings: Settings) -> str:
    """What cloud and broker call this device: `mqtt.uid`, or a name that is drawn once and kept in the state directory."""
    if settings.mqtt.uid is not None:
        return settings.mqtt.uid
    path = settings.home / "device-name"
    if not path.exists():
        plain = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40].strip("-") or "device"
        atomic_write(path, f"{plain}-{secrets.token_hex(4)}\n")
    with translate_os_errors("read", path):
        return path.read_text("ascii").strip()


async def no_faces(path: str) -> bytes:
    """Over a broker alone."""
    del path
    raise LinkLost("What is needed to tokenize for a model of the cloud comes over HTTP: set cloud.url.")


def cloud_key(cloud: CloudSettings) -> str | None:
    """The API key for the cloud, from the configuration or its file.

    Raises:
        ConfigError: The file cannot be read, or holds no key.
    """
    return cloud.key if cloud.key_file is None else read_secret(cloud.key_file, "cloud.key_file")


def http_transport(settings: Settings, meter: Meter | None = None) -> HttpTransport:
    """The way to the cloud over HTTP; raises `ConfigError` where key or certificate cannot be read."""
    cloud = settings.cloud
    assert cloud.url is not None
    floor = TimeFloor(settings.home / FLOOR)
    return HttpTransport(cloud.url, cloud_key(cloud), ca_file=cloud.ca_file, floor=floor, meter=meter)


def peer_transport(settings: Settings, meter: Meter | None = None) -> HttpTransport:
    """The way to the peer; raises `ConfigError` where its key cannot be read."""
    peers = settings.peers
    assert peers.engine is not None
    key = None if peers.engine_key_file is None else read_secret(peers.engine_key_file, "peers.engine_key_file")
    floor = TimeFloor(settings.home / FLOOR)
    return HttpTransport(peers.engine, key, ca_file=peers.ca_file, floor=floor, meter=meter)
