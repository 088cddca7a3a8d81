"""What a site is told: the topics below `edgewise/<name>`, and how Home Assistant is told of them.

Discovery: https://www.home-assistant.io/integrations/mqtt/#mqtt-discovery, sensors: .../integrations/sensor.mqtt/.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from edgewise.wire import topics

_NO_LEVEL = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor:
    """One value of the device.

    Attributes:
        key: Last level of its topic.
        label: For people.
        sample: Name in telemetry's samples; None where the value is none of them.
        more: Further fields of the discovery message.
        attributes: The value is a JSON object, which Home Assistant shows whole beside the state.
    """

    key: str
    label: str
    sample: str | None = None
    more: tuple[tuple[str, str], ...] = ()
    attributes: bool = False


_MEASURED = ("state_class", "measurement")
SENSORS = (
    Sensor(key="state", label="State"),
    Sensor(
        key="temperature",
        label="Temperature",
        sample="temperature_c",
        more=(("device_class", "temperature"), ("unit_of_measurement", "\u00b0C"), _MEASURED),
    ),
    Sensor(
        key="power",
        label="Power",
        sample="power_w",
        more=(("device_class", "power"), ("unit_of_measurement", "W"), _MEASURED),
    ),
    Sensor(
        key="tokens_per_s",
        label="Tokens per second",
        sample="tokens_per_s",
        more=(("unit_of_measurement", "tokens/s"), _MEASURED),
    ),
    Sensor(key="governor", label="Governor"),
    Sensor(key="models", label="Loaded models", more=(("value_template", "{{ value_json.count }}"),), attributes=True),
    Sensor(key="last_error", label="Last error", more=(("value_template", "{{ value_json.kind }}"),), attributes=True),
)


def level_of(name: str, uid: str) -> str:
    """A name for people as one level of a topic; the device's own where nothing is left of it."""
    return _NO_LEVEL.sub("-", name).strip("-") or uid


def value_topic(level: str, key: str) -> str:
    return f"edgewise/{level}/{key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What discovery messages say of the device.

    Attributes:
        level: Its level in the topics.
        stale_s: Seconds after which a value that was not told again is void.
        present: The fleet's topics say whether it is there.
    """

    uid: str
    level: str
    name: str
    version: str
    model: str
    stale_s: int
    present: bool


def discovery(about: About) -> dict[str, bytes]:
    """Home Assistant's configuration topics and what is retained on each."""
    node = _NO_LEVEL.sub("_", about.uid)
    return {f"homeassistant/sensor/{node}/{one.key}/config": _config(one, node, about) for one in SENSORS}


def _config(sensor: Sensor, node: str, about: About) -> bytes:
    topic = value_topic(about.level, sensor.key)
    told: dict[str, Any] = {
        "name": sensor.label,
        "unique_id": f"edgewise_{node}_{sensor.key}",
        "state_topic": topic,
        "expire_after": about.stale_s,
        **dict(sensor.more),
        "device": {
            "identifiers": [f"edgewise_{about.uid}"],
            "name": about.name or about.uid,
            "manufacturer": "Edgewise",
            "model": about.model,
            "sw_version": about.version,
        },
        "origin": {"name": "edgewise", "sw_version": about.version},
    }
    if sensor.attributes:
        told["json_attributes_topic"] = topic
    if about.present:  # the retained last will of the device: away the moment the broker notices it
        told["availability_topic"] = topics.live(about.uid)
        told["availability_template"] = "{{ 'offline' if value_json.body.state == 'offline' else 'online' }}"
    return json.dumps(told, separators=(",", ":")).encode()
