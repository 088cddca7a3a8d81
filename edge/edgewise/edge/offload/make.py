"""The cloud of a device, made of its settings."""

from __future__ import annotations

import socket

from edgewise.api.deps import ApiDependencies
from edgewise.core.files import read_secret
from edgewise.core.settings import Settings
from edgewise.core.settings_links import CloudSettings
from edgewise.edge.offload.cloud import Cloud
from edgewise.edge.offload.faces import FaceStore
from edgewise.edge.offload.health import Health
from edgewise.edge.offload.http import HttpTransport
from edgewise.edge.offload.models import ModelsWithCloud
from edgewise.edge.placement.protocol import Meter


def make_cloud(settings: Settings, deps: ApiDependencies, meter: Meter | None = None) -> Cloud | None:
    """None where no cloud is configured. With one, `deps.models` are those of both.

    Args:
        meter: Told of what crosses the link.

    Raises:
        ConfigError: The key cannot be read; the message names the setting.
    """
    if settings.cloud.url is None:
        return None
    http = http_transport(settings, meter)
    health = Health((http,), emit=deps.events.emit, meter=meter)
    cloud = Cloud(
        settings.cloud,
        health,
        device=device_name(settings),
        tokenizer=lambda name: deps.models.get(name).tokenizer,
    )
    deps.models = ModelsWithCloud(deps.models, cloud, FaceStore(settings.home / "faces", http.fetch))
    return cloud


def device_name(settings: Settings) -> str:
    """What the cloud calls this device."""
    return settings.mqtt.uid or socket.gethostname()


def cloud_key(cloud: CloudSettings) -> str | None:
    """The API key for the cloud, from the configuration or its file.

    Raises:
        ConfigError: The file cannot be read, or holds no key.
    """
    return cloud.key if cloud.key_file is None else read_secret(cloud.key_file, "cloud.key_file")


def http_transport(settings: Settings, meter: Meter | None = None) -> HttpTransport:
    """The way to the cloud over HTTP; raises `ConfigError` as `cloud_key` does."""
    cloud = settings.cloud
    assert cloud.url is not None
    return HttpTransport(cloud.url, cloud_key(cloud), meter=meter)
