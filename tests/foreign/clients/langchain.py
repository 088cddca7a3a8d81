"""langchain-openai: a chat, a stream, a tool, a structured answer."""

from __future__ import annotations

import asyncio

from _cases import QUESTION, arguments, report
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, MODEL = arguments()
chat = ChatOpenAI(base_url=URL, api_key="none", model=MODEL, temperature=0, max_tokens=48, seed=1, timeout=120)


class City(BaseModel):
    """A city and its country."""

    name: str
    country: str


@tool
def add(a: int, b: int) -> int:
    """Adds two whole numbers."""
    return a + b


def whole() -> None:
    answer = chat.invoke(QUESTION)
    assert "Paris" in answer.text, answer
    assert (answer.usage_metadata or {}).get("output_tokens", 0) > 0, answer


def stream() -> None:
    pieces = [piece.text for piece in chat.stream(QUESTION)]
    assert sum(map(bool, pieces)) > 1, pieces  # the first token is sent at once, those after it perhaps together
    assert "Paris" in "".join(pieces), pieces


def several_at_once() -> None:
    async def ask() -> list[str]:
        answers = await asyncio.gather(*(chat.ainvoke(QUESTION) for _ in range(4)))
        return [answer.text for answer in answers]

    texts = asyncio.run(ask())
    assert len(set(texts)) == 1, texts


def tool_call() -> None:
    answer = chat.bind_tools([add], tool_choice="add").invoke("What is 2 plus 3?")
    assert [call["name"] for call in answer.tool_calls] == ["add"], answer
    assert set(answer.tool_calls[0]["args"]) == {"a", "b"}, answer


def structured() -> None:
    found = chat.with_structured_output(City, method="json_schema").invoke("The capital of France, as JSON.")
    assert isinstance(found, City), found
    assert found.name, found


report({"chat": whole, "stream": stream, "four at once": several_at_once, "tool": tool_call, "json_schema": structured})
