"""Two models in one real service: engines live and die apart, and the service ends while one is loading."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from scripts.service import DeviceService
from scripts.sse import events
from tests.e2e.service import edgewise, import_tiny, new_home, running

LONG = 400


@pytest.fixture
def service() -> Iterator[DeviceService]:
    with new_home(starter=False) as home:
        import_tiny(home, "home-model", seed=1, context=1024)
        import_tiny(home, "guest", seed=2, context=1024)
        with running(model="home-model", home=home) as made:
            yield made


def body(model: str, tokens: int, **fields: Any) -> dict[str, Any]:
    return {"model": model, "prompt": "ab", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}


def text(http: httpx.Client, model: str, tokens: int = 20) -> str:
    response = http.post("/v1/completions", json=body(model, tokens))
    assert response.status_code == 200, response.text
    answer: str = response.json()["choices"][0]["text"]
    return answer


def status(http: httpx.Client) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in http.get("/edgewise/v1/models").json()["models"]}


def test_engines_live_and_die_apart_and_the_service_ends_while_one_loads(service: DeviceService) -> None:
    with httpx.Client(base_url=service.url, timeout=120, trust_env=False) as http:
        whole = text(http, "home-model", LONG)
        guest = text(http, "guest")
        found = status(http)
        assert {name: model["state"] for name, model in found.items()} == {"home-model": "loaded", "guest": "loaded"}
        assert (found["home-model"]["pinned"], found["guest"]["pinned"]) == (True, False)

        pieces: list[str] = []
        with http.stream("POST", "/v1/completions", json=body("home-model", LONG, stream=True)) as response:
            for event in events(response.iter_lines()):
                pieces += [choice["text"] for choice in event["choices"]]
                if len(pieces) == 5:
                    os.kill(found["guest"]["pid"], signal.SIGKILL)
        assert "".join(pieces) == whole
        assert text(http, "guest") == guest
        assert status(http)["home-model"]["pid"] == found["home-model"]["pid"], "the other engine has not noticed"

        table = edgewise(service.home, "ps", "--url", service.url, "--json")
        assert {model["name"] for model in json.loads(table)["models"]} == {"home-model", "guest"}
        edgewise(service.home, "stop", "guest", "--url", service.url)
        until(lambda: status(http)["guest"]["state"] == "unloaded")

        asking = threading.Thread(target=lambda: http.post("/v1/completions", json=body("guest", 5)), daemon=True)
        asking.start()
        until(lambda: status(http)["guest"]["state"] == "loading")
        family = service.children()
        assert service.stop() == 0
        asking.join(30)
    assert not [child.pid for child in family if psutil.pid_exists(child.pid)]


def until(condition: Any, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not come true"
        time.sleep(0.02)
