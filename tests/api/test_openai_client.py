"""The openai package itself against the service on a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.api.harness import CHAT, Api, hello, listening, make_api, parse_events, until
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import says
from tests.fakes.text import EOS

TEXT = "Paris 👩‍👩‍👧 \u2028 é."
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


async def test_whole_answers() -> None:
    api = make_api(FakeEngine(script=says(TEXT)))
    async with listening(api) as url, client_of(url) as client:
        models = [model.id async for model in client.models.list()]
        assert models == ["tiny"]
        assert (await client.models.retrieve("starter")).id == "tiny"
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2)
        choice = answer.choices[0]
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == len(TEXT.encode())
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(TEXT.encode()) + 1
        extra = answer.model_extra
        assert extra is not None
        assert extra["edgewise"]["model"] == "tiny"
        again = await client.chat.completions.create(model="tiny", messages=[*MESSAGES, choice.message, *MESSAGES])
        assert again.choices[0].message.content == TEXT
        text = await client.completions.create(model="tiny", prompt=["a", "b"], logprobs=2, extra_body={"top_k": 5})
        assert [one.text for one in text.choices] == [TEXT, TEXT]


async def test_streamed_answers() -> None:
    api = make_api(FakeEngine(script=says(TEXT)))
    async with listening(api) as url, client_of(url) as client:
        parts, usage, finishes = [], None, []
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                parts.append(choice.delta.content or "")
                finishes.append(choice.finish_reason)
        assert "".join(parts) == TEXT
        assert usage is not None
        assert usage.completion_tokens == len(TEXT.encode()) + 1
        assert finishes == [None] * (len(finishes) - 1) + ["stop"]
        text_stream = await client.completions.create(model="tiny", prompt="a", stream=True, logprobs=1)
        assert "".join([chunk.choices[0].text async for chunk in text_stream]) == TEXT


async def test_the_stream_helper_accumulates_what_the_body_says() -> None:
    api = make_api(FakeEngine(script=says(TEXT)))
    async with listening(api) as url, client_of(url) as client:
        async with client.chat.completions.stream(model="tiny", messages=MESSAGES, logprobs=True) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == TEXT
        logprobs = final.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert len(logprobs.content) == len(TEXT.encode())


async def test_errors_have_their_classes() -> None:
    api = make_api()
    async with listening(api) as url, client_of(url) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nope", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, top_logprobs=50, logprobs=True)
        assert refused.value.param == "top_logprobs"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()
        api.deps.requests.begin_drain()
        with pytest.raises(openai.InternalServerError) as draining:
            await client.chat.completions.create(model="tiny", messages=MESSAGES)
        assert draining.value.code == "shutting_down"


async def test_a_fault_in_a_stream_is_raised_by_the_client() -> None:
    api = make_api(FakeEngine(script=says("hello"), fault=Fault(0, 2, message="It broke.")))
    async with listening(api) as url, client_of(url) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        iterator = aiter(stream)
        received = [(await anext(iterator)).choices[0].delta.content for _ in range(3)]
        with pytest.raises(openai.APIError, match=r"It broke\."):
            await anext(iterator)
    assert received == ["", "h", "e"]


def endless() -> FakeEngine:
    """Answers that go on until their client leaves, a token every few milliseconds."""
    return FakeEngine(script=lambda request: [ord("a")] * 4000, delay_s=0.002)


@pytest.mark.parametrize("body", [hello(), hello(stream=True), hello(stream=True, n=3)])
async def test_closing_the_connection_frees_the_pages_within_a_second(body: dict[str, Any]) -> None:
    api = make_api(endless())
    async with listening(api) as url:
        for _ in range(3):
            before = len(api.engine.requests)
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                asking = asyncio.create_task(client.post(CHAT, json=body))
                await until(lambda before=before: len(api.engine.requests) > before and api.engine.pages_used > 0)
                await asyncio.sleep(0.02)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await until(lambda: api.engine.pages_used == 0, seconds=1.0)
        await until(lambda: api.deps.requests.open == 0, seconds=1.0)


async def test_a_drain_over_a_real_socket_ends_streams_with_an_error_event_and_closes_event_feeds() -> None:
    api = make_api(endless())
    async with listening(api) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
        asking = asyncio.create_task(client.post(CHAT, json=hello(stream=True)))
        feed = asyncio.create_task(client.get("/edgewise/v1/events", headers={"accept": "text/event-stream"}))
        await until(lambda: api.engine.pages_used > 0)
        api.deps.requests.begin_drain()
        assert not await api.deps.requests.wait_idle(0.05)
        api.deps.requests.cut()
        assert await api.deps.requests.wait_idle(10)
        assert '"code":"shutting_down"' in (await asking).text
        assert (await feed).status_code == 200


async def test_a_slow_reader_gets_the_whole_text() -> None:
    text = "日本語👍" * 500
    engine = FakeEngine(script=lambda request: [*text.encode(), EOS], vocab_size=512, max_context=20_000)
    api: Api = make_api(engine)
    api_model = api.deps.models.get("tiny")
    assert api_model.context == 4096  # the model's own is smaller than the engine's
    async with listening(api) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        got = b""
        async with client.stream("POST", "/v1/completions", json={"model": "tiny", "prompt": "x", "stream": True}) as r:
            async for part in r.aiter_bytes(97):
                got += part
                if len(got) % 970 == 0:
                    await asyncio.sleep(0.0005)
    joined = "".join(event["choices"][0]["text"] for event in _events(got.decode()) if event["choices"])
    assert joined == text[: len(joined)]
    assert len(joined.encode()) in range(4090, 4096)


def _events(text: str) -> list[Any]:
    return [event for event in parse_events(text) if isinstance(event, dict)]
