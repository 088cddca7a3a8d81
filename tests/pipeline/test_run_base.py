"""What every run gives back when it is closed, whatever befalls its streams and whoever closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgewise.core.errors import QueueFull
from edgewise.pipeline.plan import Plan
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.receipts import Costs, Receipt, Usage
from edgewise.pipeline.run_base import RunBase


@dataclass
class Stream:
    """A double of an engine's stream: it says nothing, and ends as it is told.

    Attributes:
        slow: The first who closes it waits until he is cancelled.
        broken: Nobody can close it.
    """

    slow: bool = False
    broken: bool = False
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        first = not self.closing.is_set()
        self.closing.set()
        if self.broken:
            raise RuntimeError("it stays open")
        if self.slow and first:
            await asyncio.Event().wait()
        self.closed = True


@dataclass
class OnePart:
    index: int
    stream: Any
    account: None = None


class Held:
    """The end of a run as placement and the audit trail hear it."""

    def __init__(self) -> None:
        self.outcomes: list[str | None] = []
        self.audited: list[str] = []

    def told(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome.fault)

    async def begin(self, prompt_tokens: int, answers: int) -> None:
        """The hooks let it pass."""

    async def end(self, code: str) -> None:
        self.audited.append(code)


class PlainRun(RunBase[Any, OnePart, Any]):
    def usage(self) -> Usage:
        return Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=None)

    def receipt(self) -> Receipt:
        return cast("Receipt", SimpleNamespace(to_dict=dict, costs=Costs()))

    async def _take(self, part: OnePart, chunk: Any) -> Any:
        del part
        return chunk

    async def begin(self, *streams: Stream | BaseException) -> None:
        await self._start([submit(index, stream) for index, stream in enumerate(streams)])


def submit(index: int, stream: Stream | BaseException) -> Callable[[], Awaitable[OnePart]]:
    async def made() -> OnePart:
        if isinstance(stream, BaseException):
            raise stream
        return OnePart(index, stream)

    return made


def new_run(held: Held) -> PlainRun:
    task = SimpleNamespace(
        id="r", key="", model=SimpleNamespace(name="m"), priority=None, privacy=None, deadline_s=None, policy=None
    )
    return PlainRun(task, Plan(()), passage=cast("Any", held), on_end=held.told)


async def test_a_run_whose_closing_is_cancelled_gives_back_what_it_holds() -> None:
    held, streams = Held(), [Stream(slow=True), Stream(slow=True)]
    run = new_run(held)
    await run.begin(*streams)
    await asyncio.sleep(0)  # both are being read
    closing = asyncio.create_task(run.aclose())
    for stream in streams:
        await stream.closing.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [stream.closed for stream in streams] == [True, True]
    assert (held.outcomes, held.audited) == (["cancelled"], ["cancelled"])


@pytest.mark.parametrize("read", [False, True])
async def test_a_stream_that_cannot_be_closed_keeps_no_other_open(read: bool) -> None:
    held, streams = Held(), [Stream(broken=True), Stream()]
    run = new_run(held)
    await run.begin(*streams)
    if read:
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="stays open"):
        await run.aclose()
    assert streams[1].closed
    assert (held.outcomes, held.audited) == (["cancelled"], ["cancelled"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (QueueFull("full"), "rate_limit_exceeded"),
        (RuntimeError("a fault of our own"), "engine_error"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
async def test_what_keeps_a_run_from_beginning_is_told_by_its_name(error: BaseException, code: str) -> None:
    held, first = Held(), Stream()
    with pytest.raises(type(error)):
        await new_run(held).begin(first, error)
    assert first.closed
    assert (held.outcomes, held.audited) == ([code], [code])
