"""instructor: typed answers by JSON schema and by tools (its mode JSON asks for a form, which a small model misses)."""

from __future__ import annotations

import instructor
from _cases import arguments, report
from openai import OpenAI
from pydantic import BaseModel

URL, MODEL = arguments()
client = OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=120)
ASK = [{"role": "user", "content": "Name the capital of France and its country."}]


class City(BaseModel):
    """A city and its country."""

    name: str
    country: str


def _ask(mode: instructor.Mode) -> None:
    found = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=MODEL, messages=ASK, response_model=City, max_retries=0, max_tokens=96, temperature=0
    )
    assert isinstance(found, City), found
    assert found.name, found


report(
    {
        "json_schema": lambda: _ask(instructor.Mode.JSON_SCHEMA),
        "tools": lambda: _ask(instructor.Mode.TOOLS),
    }
)
