"""Mutated and invented bodies: always an answer or a 4xx in OpenAI's shape, never a fault of ours, never a hang."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.api.deps import Limits
from tests.api.harness import CHAT, COMPLETIONS, error_of, hello, make_api, parse_events, prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one service, so one loop
API = make_api(limits=Limits(max_body_bytes=200_000, body_timeout_s=10))
RICH_CHAT = hello(
    messages=[
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "t", "tool_call_id": "1"},
        {"role": "user", "content": "u"},
    ],
    stream=True,
    stream_options={"include_usage": True},
    n=2,
    stop=["a", "b"],
    seed=1,
    max_tokens=4,
    temperature=0.5,
    top_p=0.5,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    logit_bias={"5": 1},
    logprobs=True,
    top_logprobs=2,
    top_k=5,
    min_p=0.1,
    repetition_penalty=1.1,
    min_tokens=1,
    stop_token_ids=[3],
    ignore_eos=True,
    return_token_ids=True,
    timeout=5,
    metadata={"a": "b"},
    user="u",
    response_format={"type": "text"},
    tools=[],
    modalities=["text"],
)
RICH_TEXT = prompt(prompt=["a", "b"], n=2, logprobs=2, stop="x", best_of=2, stream=False, logit_bias={"5": 1}, seed=-5)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "\0", "<|end|>", "é" * 50, 10**400, -0.0, 1e308, 5e-324, 2**63, 2**64, "NaN"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a body."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        container = todo.pop()
        for key in list(container) if isinstance(container, dict) else range(len(container)):
            found.append((container, key))
            if isinstance(container[key], (dict, list)):
                todo.append(container[key])
    return found


def mutate(body: dict[str, Any], choices: random.Random, value: Any) -> None:
    container, key = choices.choice(places(body))
    match choices.randrange(5):
        case 0:
            del container[key]
        case 1:
            container[key] = value
        case 2:
            container[key] = [container[key]]
        case 3:
            container[key] = {"x": container[key]}
        case _ if isinstance(container, dict):
            container[f"{key}_"] = container.pop(key)
        case _:
            container.append(value)


async def ask(path: str, raw: bytes) -> None:
    response = await asyncio.wait_for(API.post(path, raw), 60)
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        error = error_of(response)
        assert response.status_code in (400, 404, 413), error
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert parse_events(response.text)[-1] == "[DONE]"
    else:
        assert response.json()["choices"]
    assert API.deps.requests.open == 0
    assert API.engine.pages_used == 0


bounded = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@bounded
@given(
    st.sampled_from([(CHAT, RICH_CHAT), (COMPLETIONS, RICH_TEXT)]),
    st.randoms(),
    st.lists(VALUES, min_size=1, max_size=4),
)
async def test_mutated_bodies(route: tuple[str, dict[str, Any]], choices: random.Random, values: list[Any]) -> None:
    path, template = route
    body = copy.deepcopy(template)
    for value in values:
        if body:
            mutate(body, choices, value)
    await ask(path, json.dumps(body).encode())


@bounded
@given(st.sampled_from([CHAT, COMPLETIONS]), st.dictionaries(st.sampled_from([*RICH_CHAT, *RICH_TEXT]), VALUES))
async def test_invented_bodies(path: str, body: dict[str, Any]) -> None:
    await ask(path, json.dumps(body).encode())


@bounded
@given(st.sampled_from([CHAT, COMPLETIONS]), st.randoms(), st.binary(max_size=12))
async def test_damaged_bytes(path: str, choices: random.Random, junk: bytes) -> None:
    raw = bytearray(json.dumps(RICH_CHAT if path == CHAT else RICH_TEXT).encode())
    start = choices.randrange(len(raw))
    raw[start : start + choices.randrange(20)] = junk
    await ask(path, bytes(raw))


async def test_the_templates_are_good_requests() -> None:
    for path, body in ((CHAT, RICH_CHAT), (COMPLETIONS, RICH_TEXT)):
        assert (await API.post(path, body)).status_code == 200
