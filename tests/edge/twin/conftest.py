"""The devices and brokers of the agent's tests."""

from __future__ import annotations

from tests.edge.agent.conftest import broker, device, fleet, new_device, one_broker, uid

__all__ = ["broker", "device", "fleet", "new_device", "one_broker", "uid"]
