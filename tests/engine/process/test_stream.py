from __future__ import annotations

import asyncio
import gc

import pytest

from edgewise.engine.request import RequestStats, TokenChunk, TokenLogprobs
from edgewise.engine.stream import MERGE_ABOVE, Mailbox, RequestStream

STATS = RequestStats(
    prompt_tokens=1, cached_tokens=0, completion_tokens=1, queued_s=0.0, prefill_s=0.0, decode_s=0.0
)  # fmt: skip


def chunk(offset: int, *, last: bool = False) -> TokenChunk:
    return TokenChunk(
        request_id="a",
        offset=offset,
        tokens=(offset,),
        logprobs=(TokenLogprobs(token=offset, logprob=-1.0),),
        finish="stop" if last else None,
        stats=STATS if last else None,
    )


class Opened:
    """A stream whose cancellations are counted."""

    def __init__(self) -> None:
        self.mailbox: Mailbox[TokenChunk] = Mailbox()
        self.cancelled = 0
        self.stream: RequestStream[TokenChunk] | None = RequestStream(
            self.mailbox, self.cancel, asyncio.get_running_loop()
        )

    def cancel(self) -> None:
        self.cancelled += 1

    def reading(self) -> RequestStream[TokenChunk]:
        assert self.stream is not None
        return self.stream


async def test_a_stream_that_is_read_to_its_end_is_not_cancelled() -> None:
    opened = Opened()
    opened.mailbox.put(chunk(0))
    opened.mailbox.put(chunk(1, last=True))
    assert [part.offset async for part in opened.reading()] == [0, 1]
    await opened.reading().aclose()
    opened.stream = None
    gc.collect()
    await asyncio.sleep(0)
    assert opened.cancelled == 0


async def test_closing_cancels_once_and_ends_the_iteration() -> None:
    opened = Opened()
    opened.mailbox.put(chunk(0))
    await opened.reading().aclose()
    await opened.reading().aclose()
    assert opened.cancelled == 1
    assert [part async for part in opened.reading()] == []


async def test_closing_wakes_the_reader() -> None:
    opened = Opened()

    async def read() -> list[TokenChunk]:
        return [part async for part in opened.reading()]

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    await opened.reading().aclose()
    assert await reader == []


async def test_cancelling_the_reading_task_cancels_the_request() -> None:
    opened = Opened()
    reader = asyncio.ensure_future(opened.reading().__anext__())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert opened.cancelled == 1


async def test_waiting_on_a_task_with_a_time_limit_cancels_nothing() -> None:
    """The way to do something (a keep-alive) while no chunk comes."""
    opened = Opened()
    reader = asyncio.ensure_future(opened.reading().__anext__())
    done, _ = await asyncio.wait({reader}, timeout=0.01)
    assert not done
    opened.mailbox.put(chunk(0, last=True))
    assert (await reader).offset == 0
    assert opened.cancelled == 0


async def test_dropping_the_stream_cancels_also_from_another_thread() -> None:
    opened = Opened()

    def drop() -> None:
        opened.stream = None

    await asyncio.to_thread(drop)
    await asyncio.sleep(0)
    assert opened.cancelled == 1


async def test_a_second_reader_is_refused() -> None:
    opened = Opened()
    reader = asyncio.ensure_future(opened.reading().__anext__())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one reader"):
        await opened.mailbox.get()
    opened.mailbox.put(chunk(0, last=True))
    await reader


async def test_a_slow_consumer_gets_fewer_and_larger_chunks() -> None:
    opened = Opened()
    count = 10 * MERGE_ABOVE
    for offset in range(count):
        opened.mailbox.put(chunk(offset, last=offset == count - 1))
    assert len(opened.mailbox) == MERGE_ABOVE + 1
    parts = [part async for part in opened.reading()]
    assert [token for part in parts for token in part.tokens] == list(range(count))
    assert [entry.token for part in parts for entry in part.logprobs or ()] == list(range(count))
    position = 0
    for part in parts:
        assert part.offset == position
        position += len(part.tokens)
    assert parts[-1].finish == "stop"
    assert all(part.finish is None for part in parts[:-1])
