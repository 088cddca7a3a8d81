"""The composed device service on a tiny model, as a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.service import edgewise_command, edgewise_environment, free_port
from tests.e2e.service import import_tiny, new_home, running


def events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_all_addresses_serve_both_protocols_and_plain_http_is_warned_of() -> None:
    with new_home(starter=False) as home, running("--host", "::", model=import_tiny(home), home=home) as service:
        for host in ("127.0.0.1", "[::1]"):
            assert httpx.get(f"http://{host}:{service.port}/v1/models", timeout=30).status_code == 200
        warnings = [event for event in events(service.log) if event["event"] == "plain_http"]
        assert [event["level"] for event in warnings] == ["warning"]


def test_on_loopback_there_is_nothing_to_warn_of_and_the_queue_bounds_a_request() -> None:
    small = {"EDGEWISE_ENGINE__MAX_RUNNING": "2", "EDGEWISE_ENGINE__MAX_WAITING": "0"}
    with new_home(starter=False) as home, running(model=import_tiny(home), home=home, environment=small) as service:
        url = f"http://127.0.0.1:{service.port}/v1/completions"
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
        assert len(httpx.post(url, json={**body, "n": 2}, timeout=60).json()["choices"]) == 2
        refused = httpx.post(url, json={**body, "n": 3}, timeout=60)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        assert not [event for event in events(service.log) if event["level"] == "warning"]


def test_a_cache_that_is_configured_too_small_ends_the_service_at_once() -> None:
    with new_home(starter=False) as home:
        name = import_tiny(home)
        done = subprocess.run(
            edgewise_command("serve", "--model", name, "--port", str(free_port())),
            env=edgewise_environment(home, {"EDGEWISE_ENGINE__KV_MEMORY_BYTES": "100"}),
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 4
    assert "raise engine.kv_memory_bytes" in done.stderr.splitlines()[-1]
    assert done.stderr.count('"engine_starting"') == 1
