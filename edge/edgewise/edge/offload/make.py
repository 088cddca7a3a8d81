"""The cloud of a device, made of its settings."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from edgewise.core.files import read_secret
from edgewise.core.settings import Settings
from edgewise.core.settings_links import CloudSettings
from edgewise.edge.offload.cloud import Cloud
from edgewise.edge.offload.health import Emit, Health
from edgewise.edge.offload.http import HttpTransport
from edgewise.edge.offload.transport import Transport
from edgewise.edge.placement.protocol import Meter
from edgewise.pipeline.model import Tokenizer


def make_cloud(
    settings: Settings, *, emit: Emit, tokenizer: Callable[[str], Tokenizer], meter: Meter | None = None
) -> Cloud | None:
    """None where no cloud is configured.

    Args:
        emit: Told of the link's events.
        tokenizer: That of an open model, by name.
        meter: Told of what crosses the link.

    Raises:
        ConfigError: The key cannot be read; the message names the setting.
    """
    if settings.cloud.url is None:
        return None
    device = device_name(settings)
    health = Health(_transports(settings), emit=emit, meter=meter)
    return Cloud(settings.cloud, health, device=device, tokenizer=tokenizer)


def device_name(settings: Settings) -> str:
    """What the cloud calls this device."""
    return settings.mqtt.uid or socket.gethostname()


def cloud_key(cloud: CloudSettings) -> str | None:
    """The API key for the cloud, from the configuration or its file.

    Raises:
        ConfigError: The file cannot be read, or holds no key.
    """
    return cloud.key if cloud.key_file is None else read_secret(cloud.key_file, "cloud.key_file")


def http_transport(settings: Settings) -> HttpTransport:
    """The way to the cloud over HTTP; raises `ConfigError` as `cloud_key` does."""
    cloud = settings.cloud
    assert cloud.url is not None
    return HttpTransport(cloud.url, cloud_key(cloud))


def _transports(settings: Settings) -> Sequence[Transport]:
    return (http_transport(settings),)
