"""litellm: a chat, a stream, tools, a JSON schema, and the error of an unknown model."""

from __future__ import annotations

import json

import litellm
from _cases import ADD, QUESTION, arguments, report

URL, MODEL = arguments()
COMMON = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "none", "temperature": 0, "max_tokens": 48}
ASK = [{"role": "user", "content": QUESTION}]


def whole() -> None:
    answer = litellm.completion(messages=ASK, **COMMON)
    assert "Paris" in answer.choices[0].message.content, answer


def stream() -> None:
    pieces = [piece.choices[0].delta.content or "" for piece in litellm.completion(messages=ASK, stream=True, **COMMON)]
    assert "Paris" in "".join(pieces), pieces


def tool_call() -> None:
    answer = litellm.completion(
        messages=[{"role": "user", "content": "What is 2 plus 3?"}],
        tools=[{"type": "function", "function": ADD}],
        tool_choice={"type": "function", "function": {"name": "add"}},
        **COMMON,
    )
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "add", answer
    assert set(json.loads(call.function.arguments)) == {"a", "b"}, answer


def schema() -> None:
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "sum", "strict": True, "schema": ADD["parameters"]},
    }
    answer = litellm.completion(messages=ASK, response_format=wanted, **COMMON)
    assert set(json.loads(answer.choices[0].message.content)) == {"a", "b"}, answer


def unknown_model() -> None:
    try:
        litellm.completion(messages=ASK, **{**COMMON, "model": "openai/no-such-model-here", "num_retries": 0})
    except litellm.exceptions.NotFoundError:
        return
    raise AssertionError("no NotFoundError")


report({"chat": whole, "stream": stream, "tool": tool_call, "json_schema": schema, "unknown model": unknown_model})
