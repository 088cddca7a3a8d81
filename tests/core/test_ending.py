"""What was begun is ended from the last to the first, and the first error is the one that leaves."""

from __future__ import annotations

import asyncio
import sys

import pytest

from edgewise.core.ending import Endings
from edgewise.core.errors import ConfigError, StorageError


def notes_of(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


async def test_all_are_ended_from_the_last_to_the_first_whether_they_are_awaited_or_not() -> None:
    ended: list[str] = []

    async def awaited() -> None:
        await asyncio.sleep(0)
        ended.append("second")

    async with Endings() as endings:
        endings.add("the first", lambda: ended.append("first"))
        endings.add("the second", awaited)
        endings.add("the third", lambda: ended.append("third"))
    assert ended == ["third", "second", "first"]


async def test_an_error_of_the_body_is_not_replaced_and_carries_what_ending_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []

    def refuse() -> None:
        raise StorageError("The disk is full.")

    async def break_off() -> None:
        raise ValueError("a fault")

    async def work() -> None:
        async with Endings() as endings:
            endings.add("the first", lambda: ended.append("first"))
            endings.add("the store", refuse)
            endings.add("the link", break_off)
            raise ConfigError("No such port.")

    with pytest.raises(ConfigError, match="No such port") as caught:
        await work()
    assert ended == ["first"]
    if sys.version_info >= (3, 11):
        assert notes_of(caught.value) == [
            "Then the link could not be ended: ValueError: a fault",
            "Then the store could not be ended: The disk is full.",
        ]
    told = [(record.message, bool(record.exc_info)) for record in caplog.records]
    assert told == [("not_ended", True), ("not_ended", False)]


async def test_where_the_body_went_well_the_first_error_of_an_ending_leaves(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(what: str) -> None:
        raise StorageError(what)

    async def work() -> None:
        async with Endings() as endings:
            endings.add("the first", lambda: refuse("the earlier one"))
            endings.add("the second", lambda: refuse("the later one"))

    with pytest.raises(StorageError, match="the later one"):
        await work()
    assert [record.message for record in caplog.records] == ["not_ended"]


async def test_a_cancellation_leaves_when_everything_has_ended() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        async with Endings() as endings:
            endings.add("it", lambda: ended.append("it"))
            begun.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["it"]
