"""A broker for one machine: iotcore (rumqttd) in a child process that ends with this one.

It knows no users and no access lists, so whoever reaches it may read and write everything: it listens on loopback only.
One that takes no clients any more is started again (`broker_watch`).
For several machines run mosquitto with `systemd/mosquitto.conf`.
"""

from __future__ import annotations

import importlib
import ipaddress
import tempfile
from pathlib import Path
from typing import Any

from edgewise.core.errors import ConfigError
from edgewise.wire.mqtt.broker_watch import BrokerWatch

MAX_PAYLOAD = 2 * 1024**2
"""Bytes; iotcore's own default of 20 kB would drop the connection of whoever sends a block of a blob."""

MAX_CONNECTIONS = 10_100
"""Clients at once."""


class LocalBroker:
    """`start` and `stop` block for up to some seconds: call them outside an event loop.

    Args:
        host: A loopback address.
        port: TCP port; it must be free.

    Raises:
        ConfigError: The address is not loopback.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 1883) -> None:
        if not _loopback(host):
            raise ConfigError(
                f"mqtt: the built-in broker does not listen on {host}: it has no users and no access lists, so only "
                "127.0.0.1 is possible. For several machines run mosquitto (docs/wire.md)."
            )
        self.host, self.port = host, port
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._broker: Any = None
        self._watch = BrokerWatch(host, port, self._restart)

    def start(self) -> None:
        """Start it; returns once it answers.

        Raises:
            ConfigError: iotcore is not installed, or the port is taken.
        """
        try:
            iotcore = importlib.import_module("iotcore")
        except ImportError as error:
            raise ConfigError(
                "mqtt: the built-in broker needs iotcore: install edgewise[broker], or run mosquitto."
            ) from error
        self._folder = tempfile.TemporaryDirectory(prefix="edgewise-broker-")
        path = Path(self._folder.name) / "broker.toml"
        path.write_text(broker_config(self.host, self.port))
        broker = iotcore.Broker(config_path=str(path))
        try:
            broker.start()
        except (OSError, RuntimeError) as error:
            self._folder.cleanup()
            raise ConfigError(f"mqtt: the built-in broker cannot listen on {self.host}:{self.port}: {error}") from error
        self._broker = broker
        self._watch.start()

    def _restart(self) -> None:
        self._broker.stop()
        self._broker.start()

    def stop(self) -> None:
        """End it and free the port. Safe to call twice."""
        self._watch.stop()
        if self._broker is not None:
            self._broker.stop()
            self._broker = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def broker_config(host: str, port: int) -> str:
    """rumqttd's configuration with one MQTT 5 listener: keyword arguments of iotcore give MQTT 3.1.1 only."""
    address = f"[{host}]" if ":" in host else host
    return f"""id = 0

[router]
id = 0
max_connections = {MAX_CONNECTIONS}
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10

[v5.1]
name = "local"
listen = "{address}:{port}"
next_connection_delay_ms = 1

    [v5.1.connections]
    connection_timeout_ms = 60000
    max_payload_size = {MAX_PAYLOAD}
    max_inflight_count = 100
    dynamic_filters = true
"""


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may lead anywhere
