"""The disk tier through the whole service: a second start skips the prefill, damage changes nothing, `edgewise cache` clears."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service import edgewise, import_tiny, new_home, running

CACHE = {
    "EDGEWISE_ENGINE__DISK_CACHE_BYTES": "64 MiB",
    "EDGEWISE_ENGINE__HOST_CACHE_BYTES": "16 MiB",
    "EDGEWISE_ENGINE__KV_MEMORY_BYTES": "8 MiB",
}
SYSTEM = "You are the harbour master's clerk. " * 30


@pytest.fixture
def home() -> Iterator[Path]:
    with new_home(starter=False) as folder:
        import_tiny(folder, context=4096)
        yield folder


def ask(url: str) -> tuple[str, dict[str, Any]]:
    body = {
        "model": "tiny",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Which ship comes next?"}],
        "max_completion_tokens": 8,
        "temperature": 0,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    return document["choices"][0]["message"]["content"], document


def cached(document: dict[str, Any]) -> int:
    return int(document["usage"]["prompt_tokens_details"]["cached_tokens"])


def restored(document: dict[str, Any]) -> int:
    """Wherever in the receipt it stands."""
    found = [json.loads(text) for text in _numbers(document["edgewise"], "restored_tokens")]
    assert found, document["edgewise"]
    return int(found[0])


def _numbers(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == name:
                yield json.dumps(inner)
            else:
                yield from _numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, name)


def test_the_second_start_skips_the_prefill_until_the_cache_is_cleared(home: Path) -> None:
    with running(model="tiny", home=home, environment=CACHE) as service:
        expected, first = ask(service.url)
        assert cached(first) == 0
    files = list((home / "kv-cache").rglob("*.kv"))
    assert files
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    assert not any(b"harbour" in file.read_bytes() for file in files)

    with running(model="tiny", home=home, environment=CACHE) as service:
        text, second = ask(service.url)
        assert text == expected
        assert cached(second) == restored(second) > 0.9 * second["usage"]["prompt_tokens"]
        shown = json.loads(edgewise(home, "cache", "show", "--json", "--url", service.url))
        (model,) = shown["models"]
        assert model["tiers"]["disk"]["hits"] > 0
        assert shown["disk"][0]["model"] == "tiny"
        assert "tiny" in edgewise(home, "cache", "show", "--url", service.url)
        cleared = json.loads(edgewise(home, "cache", "clear", "--json", "--url", service.url))
        assert cleared["pages"]["tiny"]["disk"] > 0
        assert cleared["disk_bytes"] > 0
        text, third = ask(service.url)
        assert text == expected
        assert cached(third) == 0

    assert json.loads(edgewise(home, "cache", "show", "--json"))["disk"]  # the last answer's pages; no service needed
    assert json.loads(edgewise(home, "cache", "clear", "--json", "--tier", "disk"))["disk_files"] > 0
    assert json.loads(edgewise(home, "cache", "show", "--json")) == {"models": [], "disk": []}
