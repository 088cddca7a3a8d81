"""The responses and messages APIs of a real service, through their makers' clients, with hooks on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from edgewise.pipeline.hooks.audit_log import verify_chain
from scripts.service import DeviceService, ServiceError
from tests.e2e.service import STARTER, new_home, running

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def guarded() -> Iterator[DeviceService]:
    with new_home() as home:
        (home / "words.txt").write_text("Berlin\n")
        settings = {
            "EDGEWISE_HOOKS__ENABLED": "word-filter,audit-log",
            "EDGEWISE_HOOKS__OPTIONS": "word-filter.file=words.txt",
        }
        with running(home=home, environment=settings) as service:
            yield service


def test_responses_and_their_continuation(guarded: DeviceService) -> None:
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="none", max_retries=0) as ai:
        first = ai.responses.create(model=STARTER, input=QUESTION, temperature=0, max_output_tokens=32)
        assert "Paris" in first.output_text
        with ai.responses.stream(model=STARTER, input=QUESTION, temperature=0, max_output_tokens=32) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == first.output_text
        second = ai.responses.create(
            model=STARTER, input="And of Spain?", previous_response_id=first.id, temperature=0, max_output_tokens=16
        )
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.input_tokens > first.usage.total_tokens
        assert ai.responses.retrieve(second.id).output_text == second.output_text


def test_messages(guarded: DeviceService) -> None:
    import anthropic  # here: it takes seconds

    with anthropic.Anthropic(base_url=guarded.url, api_key="none", max_retries=0) as client:
        with client.messages.stream(
            model=STARTER,
            max_tokens=32,
            messages=[{"role": "user", "content": QUESTION}],
            extra_body={"temperature": 0},
        ) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert "Paris" in text
        assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) > 0
        with pytest.raises(anthropic.BadRequestError, match="word filter"):
            client.messages.create(
                model=STARTER, max_tokens=8, messages=[{"role": "user", "content": "Tell me about Berlin."}]
            )


def test_the_trail_is_whole_and_without_text(guarded: DeviceService) -> None:
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="none", max_retries=0) as ai:
        ai.completions.create(model=STARTER, prompt="The capital of France is", max_tokens=4)
    trail = guarded.home / "audit.jsonl"
    assert verify_chain(trail) >= 2
    last = json.loads(trail.read_text().splitlines()[-1])
    assert (last["event"], last["model"], last["completion_tokens"]) == ("answered", STARTER, 4)
    assert "France" not in trail.read_text()


def test_a_wrong_hook_ends_the_start(tmp_path: Path) -> None:
    service = DeviceService(tmp_path, environment={"EDGEWISE_HOOKS__ENABLED": "nobody"})
    with pytest.raises(ServiceError, match="there is no hook 'nobody'"), service:
        pass
    assert service.process.returncode == 4
