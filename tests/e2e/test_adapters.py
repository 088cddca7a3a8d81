"""Adapters through the whole service: added while it runs, asked by name, listed, told from the model alone, and removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.service import edgewise, import_model, import_tiny, new_home, running
from tests.fakes.adapters import make_adapter, merge

# In float32 the model with its adapter and the merged model answer the same.
SETTINGS = {"EDGEWISE_DTYPE": "float32", "EDGEWISE_KV_DTYPE": "float32"}


def _ask(url: str, model: str) -> httpx.Response:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "one two three"}],
        "max_completion_tokens": 24,
        "temperature": 0,
    }
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=180, trust_env=False)


def _answer(url: str, model: str) -> dict[str, Any]:
    answer = _ask(url, model)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def _text(document: dict[str, Any]) -> str:
    return str(document["choices"][0]["message"]["content"])


def _models(url: str) -> list[str]:
    return [one["id"] for one in httpx.get(f"{url}/v1/models", trust_env=False).json()["data"]]


def test_an_adapter_is_a_model_that_can_be_asked(tmp_path: Path) -> None:
    with new_home(starter=False) as home:
        import_tiny(home)
        source = home / "tiny-source"
        folder = make_adapter(tmp_path / "pirate", source, size=1.0)
        import_model(home, merge(source, folder, tmp_path / "merged"), "merged")
        with running(home=home, model="tiny", environment=SETTINGS) as device:
            plain = _text(_answer(device.url, "tiny"))
            assert _ask(device.url, "pirate").status_code == 404
            edgewise(home, "models", "adapters", "add", str(folder), "--base", "tiny")
            assert _models(device.url)[:1] == ["tiny"]
            assert set(_models(device.url)) == {"tiny", "pirate", "merged"}
            adapted = _answer(device.url, "pirate")
            assert (adapted["model"], _text(adapted)) == ("pirate", _text(_answer(device.url, "merged")))
            assert _text(_answer(device.url, "tiny:pirate")) == _text(adapted)
            assert _text(_answer(device.url, "tiny")) == plain != _text(adapted)
            assert _ask(device.url, "merged:pirate").status_code == 404
            listed = json.loads(edgewise(home, "models", "adapters", "list", "--json"))["adapters"]
            assert [(one["name"], one["base"]) for one in listed] == [("pirate", "tiny")]
            metrics = httpx.get(f"{device.url}/metrics", trust_env=False).text
            assert 'edgewise_engine_adapters{model="tiny+adapters"} 1.0' in metrics
            edgewise(home, "models", "adapters", "remove", "pirate")
            assert _ask(device.url, "pirate").status_code == 404
            assert _ask(device.url, "tiny:pirate").status_code == 404
            assert set(_models(device.url)) == {"tiny", "merged"}
