"""The openai-python client, unchanged, against a real service."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from scripts.service import DeviceService
from tests.e2e.service import STARTER

QUESTION: ChatCompletionUserMessageParam = {"role": "user", "content": "What is the capital of France?"}


@pytest.fixture
def ai(service: DeviceService) -> Iterator[OpenAI]:
    """The client insists on a key; "none" stands for none."""
    with OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(ai: OpenAI) -> None:
    assert STARTER in [model.id for model in ai.models.list()]
    assert ai.models.retrieve(STARTER).owned_by == "edgewise"
    with pytest.raises(openai.NotFoundError) as refused:
        ai.models.retrieve("no-such-model")
    assert refused.value.code == "model_not_found"


def test_chat(ai: OpenAI) -> None:
    answer = ai.chat.completions.create(model=STARTER, messages=[QUESTION], temperature=0, max_completion_tokens=32)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert answer.system_fingerprint


def test_chat_stream_with_usage(ai: OpenAI) -> None:
    stream = ai.chat.completions.create(
        model=STARTER,
        messages=[QUESTION],
        temperature=0,
        max_completion_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    with stream:
        chunks = list(stream)
    assert "Paris" in "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []


def test_several_answers_with_logprobs(ai: OpenAI) -> None:
    answer = ai.chat.completions.create(
        model=STARTER,
        messages=[QUESTION],
        n=3,
        seed=11,
        max_completion_tokens=8,
        logprobs=True,
        top_logprobs=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content
        for token in choice.logprobs.content:
            assert token.logprob <= 0
            assert len(token.top_logprobs) == 2


def test_the_same_seed_gives_the_same_answer(ai: OpenAI) -> None:
    def ask(seed: int) -> str | None:
        answer = ai.chat.completions.create(
            model=STARTER,
            messages=[{"role": "user", "content": "Invent a name for a boat."}],
            seed=seed,
            temperature=1.0,
            max_completion_tokens=24,
        )
        content: str | None = answer.choices[0].message.content
        return content

    assert ask(5) == ask(5)
    assert len({ask(seed) for seed in range(4)}) > 1


def test_completions(ai: OpenAI) -> None:
    answer = ai.completions.create(model=STARTER, prompt="The capital of France is", temperature=0, max_tokens=8)
    assert "Paris" in answer.choices[0].text
    with ai.completions.create(
        model=STARTER, prompt="The capital of France is", temperature=0, max_tokens=8, stream=True
    ) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == answer.choices[0].text


def test_a_stop_string_ends_the_answer_before_it(ai: OpenAI) -> None:
    whole = (
        ai.completions.create(model=STARTER, prompt="One, two, three,", temperature=0, max_tokens=24).choices[0].text
    )
    stop = whole[6:12]  # lies across token borders as often as not
    cut = ai.completions.create(model=STARTER, prompt="One, two, three,", temperature=0, max_tokens=24, stop=[stop])
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_refusals_are_the_clients_own_exceptions(ai: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        ai.chat.completions.create(model="no-such-model", messages=[QUESTION])
    with pytest.raises(openai.BadRequestError, match="temperature"):
        ai.chat.completions.create(model=STARTER, messages=[QUESTION], temperature=9)


async def test_the_asynchronous_client(service: DeviceService) -> None:
    async with AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as ai:
        answer = await ai.chat.completions.create(
            model=STARTER,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_completion_tokens=16,
        )
        assert "Paris" in (answer.choices[0].message.content or "")
