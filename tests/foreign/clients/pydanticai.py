"""pydantic-ai: a plain agent, a stream, an answer of a type."""

from __future__ import annotations

import asyncio

from _cases import QUESTION, arguments, report
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, MODEL = arguments()
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
SETTINGS = {"temperature": 0.0, "max_tokens": 96, "seed": 1}


class City(BaseModel):
    """A city and its country."""

    name: str
    country: str


def whole() -> None:
    result = Agent(model, model_settings=SETTINGS).run_sync(QUESTION)
    assert "Paris" in result.output, result


def stream() -> None:
    async def ask() -> str:
        async with Agent(model, model_settings=SETTINGS).run_stream(QUESTION) as result:
            return "".join([piece async for piece in result.stream_text(delta=True)])

    text = asyncio.run(ask())
    assert "Paris" in text, text


def typed() -> None:
    agent = Agent(model, output_type=NativeOutput(City), model_settings=SETTINGS)
    result = agent.run_sync("The capital of France.")
    assert isinstance(result.output, City), result
    assert result.output.name, result


def typed_by_tool() -> None:
    result = Agent(model, output_type=City, model_settings=SETTINGS).run_sync("The capital of France.")
    assert isinstance(result.output, City), result
    assert result.output.name, result


report({"chat": whole, "stream": stream, "native output": typed, "tool output": typed_by_tool})
