"""What /metrics says of the fleet service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from edgewise.cloud.fleet.views import DeviceState
from edgewise.core.metrics import Metrics


class FleetMetrics:
    """Labels are states, kinds and reasons: closed sets. Devices are not among them."""

    def __init__(self, metrics: Metrics) -> None:
        self._devices = metrics.gauge("fleet_devices", "Devices by state", ("state",))
        self.messages = metrics.counter("fleet_messages", "Messages of devices that took effect", ("kind",))
        self.dropped = metrics.counter(
            "fleet_messages_dropped", "Messages that took none: malformed, foreign, busy, failed", ("reason",)
        )
        self.waiting = metrics.gauge("fleet_waiting_bytes", "Bytes of messages that wait to be stored")
        self.batch_seconds = metrics.histogram("fleet_batch_seconds", "Seconds to store a batch of messages")
        self.commands = metrics.counter(
            "fleet_commands_sent", "Commands handed to the broker: first, or again", ("which",)
        )
        self.linked = metrics.gauge("fleet_broker_connected", "1 while the broker is connected")

    def devices(self, counts: Mapping[str, int]) -> None:
        """Devices by state as they are now."""
        for state in get_args(DeviceState):
            self._devices.labels(state).set(counts.get(state, 0))
