"""A device without a broker: its hardware and its governor are shown by a real service."""

from __future__ import annotations

import httpx

from tests.e2e.service import import_tiny, new_home, running


def test_a_service_without_a_broker_shows_its_hardware_and_its_governor() -> None:
    with new_home(starter=False) as home, running(model=import_tiny(home), home=home) as service:
        url = f"http://127.0.0.1:{service.port}"
        ready = httpx.get(f"{url}/readyz", timeout=60).json()
        assert ready["ready"]
        assert ready["governor"]["level"] in ("normal", "warm", "hot", "critical")
        shown = httpx.get(f"{url}/edgewise/v1/hardware", timeout=60).json()
        assert shown["governor"]["reason"]
        assert 0 < shown["readings"]["memory_used"] < shown["readings"]["memory_total"]
        assert "edgewise_governor_level" in httpx.get(f"{url}/metrics", timeout=60).text
