"""Faults in the middle of a stream of sound or text."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import pytest

from edgewise.api.context import RequestContext
from edgewise.api.faults import with_faults
from edgewise.core.errors import EngineFault


@pytest.mark.parametrize(
    ("fault", "code"), [(EngineFault("hoarse"), "engine_error"), (ValueError("a secret"), "internal_error")]
)
async def test_a_fault_is_the_last_event(fault: Exception, code: str) -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise fault

    context = RequestContext(id="r", started=0.0)
    first, last = [event async for event in with_faults(events(), context)]
    assert first == b"data: 1\n\n"
    name, data = last.decode().strip().split("\n")
    told = json.loads(data.removeprefix("data: "))
    assert (name, told["type"], told["error"]["code"], context.error) == ("event: error", "error", code, code)
    assert "secret" not in data


async def test_a_reader_who_leaves_closes_the_events() -> None:
    closed: list[bool] = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
        finally:
            closed.append(True)

    stream = with_faults(events(), RequestContext(id="r", started=0.0))
    await anext(stream)
    await stream.aclose()
    assert closed == [True]
