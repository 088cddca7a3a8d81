"""Guesses through the whole service: the same answer, told in the receipt and counted in the metrics."""

from __future__ import annotations

import re
from typing import Any

import httpx

from tests.e2e.service import import_tiny, new_home, running

BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "one two three"}],
    "max_completion_tokens": 60,
    "temperature": 1,
    "seed": 7,
    "logit_bias": {"70": 100, "71": 100},
    "logprobs": True,
}


def _answer(url: str) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_the_answer_is_the_same_and_its_guesses_are_told() -> None:
    with new_home(starter=False) as home:
        import_tiny(home)
        with running(home=home, model="tiny", environment={"EDGEWISE_ENGINE__SPECULATION": "off"}) as device:
            plain = _answer(device.url)
        with running(home=home, model="tiny", environment={"EDGEWISE_ENGINE__SPECULATION": "lookup"}) as device:
            guessed = _answer(device.url)
            metrics = httpx.get(f"{device.url}/metrics", trust_env=False).text
        import_tiny(home, "smaller", layers=1)
        drafting = {"EDGEWISE_ENGINE__SPECULATION": "draft", "EDGEWISE_ENGINE__DRAFT_MODEL": "smaller"}
        with running(home=home, model="tiny", environment=drafting) as device:
            drafted = _answer(device.url)
            memory = httpx.get(f"{device.url}/edgewise/v1/memory", trust_env=False).text
    assert guessed["choices"] == drafted["choices"] == plain["choices"]
    assert drafted["edgewise"]["stages"][0]["proposed_tokens"] > 0
    assert re.search(r'"draft": ?[1-9]', memory), memory
    (told,), (without,) = guessed["edgewise"]["stages"], plain["edgewise"]["stages"]
    assert 0 < told["accepted_tokens"] < told["proposed_tokens"]
    assert without["proposed_tokens"] == 0
    counted = re.search(r'^edgewise_engine_accepted_tokens_total\{model="tiny"\} (\S+)', metrics, re.MULTILINE)
    assert counted is not None
    assert float(counted[1]) >= told["accepted_tokens"]
