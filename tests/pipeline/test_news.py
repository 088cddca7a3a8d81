"""One reader waits for what comes: in order, with a limit, and nothing is lost with a reader that leaves."""

from __future__ import annotations

import asyncio

import pytest

from edgewise.core.errors import QueueFull
from edgewise.pipeline.news import News


def test_items_come_in_order_and_an_error_in_its_turn() -> None:
    async def read() -> None:
        news: News[int] = News()
        for item in (1, QueueFull("full"), 2):
            news.put(item)
        assert len(news) == 3
        assert await news.next() == 1
        with pytest.raises(QueueFull):
            await news.next()
        assert await news.next() == 2

    asyncio.run(read())


def test_a_wait_ends_with_an_item_with_its_limit_or_when_it_is_told_to() -> None:
    async def read() -> None:
        news: News[int] = News()
        loop = asyncio.get_running_loop()
        assert await news.next(0.01) is None
        loop.call_soon(news.put, 7)
        assert await news.next() == 7
        loop.call_soon(news.rouse)
        assert await news.next() is None

    asyncio.run(read())


def test_what_comes_while_its_reader_is_cancelled_is_there_for_the_next() -> None:
    async def read() -> None:
        news: News[int] = News()
        reader = asyncio.ensure_future(news.next(60.0))
        await asyncio.sleep(0)
        news.put(7)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        assert reader.cancelled()
        assert await news.next(60.0) == 7

    asyncio.run(read())


def test_what_is_at_hand_is_taken_without_waiting_but_no_error() -> None:
    async def read() -> None:
        news: News[int] = News()
        assert news.at_hand() is None
        for item in (1, QueueFull("full"), 2):
            news.put(item)
        assert news.at_hand() == 1
        assert news.at_hand() is None
        with pytest.raises(QueueFull):
            await news.next()
        assert news.at_hand() == 2

    asyncio.run(read())
