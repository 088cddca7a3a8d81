"""Where devices reach the broker, as they are told when they enrol."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from edgewise.core.addresses import connectable
from edgewise.core.settings_schema import Settings


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where devices reach the broker."""

    host: str
    port: int
    tls: bool


def broker_address(settings: Settings) -> BrokerAddress:
    """What devices are told: `fleet.broker_url`, else the broker of `[mqtt]` or this service's own host."""
    fleet, mqtt = settings.fleet, settings.mqtt
    if fleet.broker_url is not None:
        url = urlsplit(fleet.broker_url)
        tls = url.scheme == "mqtts"
        return BrokerAddress(url.hostname or "", url.port or (8883 if tls else 1883), tls)
    if fleet.broker == "external" and mqtt.host is not None:
        return BrokerAddress(mqtt.host, mqtt.port, mqtt.ca_file is not None)
    own = urlsplit(fleet.public_url or "").hostname or connectable(fleet.host)
    return BrokerAddress(own, mqtt.port, False)
