"""A link to the broker that the settings name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from edgewise.core.errors import ConfigError
from edgewise.core.files import read_secret
from edgewise.core.settings_links import MqttSettings
from edgewise.core.tls_time import FILE as FLOOR
from edgewise.core.tls_time import TimeFloor
from edgewise.wire.mqtt.connection import Broker, Will
from edgewise.wire.mqtt.link import Link, LinkEvent
from edgewise.wire.mqtt.note import NAME as NOTE
from edgewise.wire.mqtt.note import LinkNote
from edgewise.wire.mqtt.session import SessionCounter


def make_link(
    mqtt: MqttSettings,
    home: Path,
    uid: str,
    *,
    on_event: Callable[[LinkEvent], None] | None = None,
    will: Callable[[int], Will] | None = None,
    birth: Callable[[], Awaitable[None]] | None = None,
) -> Link:
    """Not yet started.

    Args:
        home: State directory, for the number of the session and the note of what befalls the link.
        uid: Name where the settings have none.
        will, birth: As `Link` takes them.

    Raises:
        ConfigError: No broker is named, or the password cannot be read.
        InvalidRequest: `uid` cannot be a name at the broker.
    """
    note = LinkNote(home / NOTE)

    def happened(event: LinkEvent) -> None:
        note.write(event)
        if on_event is not None:
            on_event(event)

    sessions = SessionCounter(home / "mqtt-session")
    broker = broker_of(mqtt, uid, TimeFloor(home / FLOOR))
    return Link(broker, sessions, will=will, birth=birth, on_event=happened, on_stop=note.close, probe=True)


def broker_of(mqtt: MqttSettings, uid: str, floor: TimeFloor | None = None) -> Broker:
    """The broker that the settings name; raises `ConfigError` as `make_link` does."""
    if mqtt.host is None:
        raise ConfigError("mqtt.host is not set: name the broker")
    return Broker(
        host=mqtt.host,
        port=mqtt.port,
        uid=mqtt.uid or uid,
        password=None if mqtt.password_file is None else read_secret(mqtt.password_file, "mqtt.password_file"),
        ca_file=mqtt.ca_file,
        cert_file=mqtt.cert_file,
        key_file=mqtt.key_file,
        floor=floor or TimeFloor(),
        keepalive_s=mqtt.keepalive_s,
    )
