"""A line is done once, however often it is tried; a batch goes only where it may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.errors import InvalidRequest, NotFound, QueueFull
from edgewise.core.sqlite import Database
from edgewise.pipeline.batches.lines import Line, LineError
from edgewise.pipeline.batches.store import Batch, Batches
from edgewise.pipeline.state import open_state

LINES = [Line(number, f"c{number}", 0, 1) for number in (1, 2, 4)]
USAGE = {"input_tokens": 2, "cached_tokens": 1, "output_tokens": 3}


@pytest.fixture
def state() -> Iterator[Database]:
    database = open_state(None)
    yield database
    database.close()


async def create(store: Batches, owner: str = "me") -> Batch:
    return await store.create(
        owner, endpoint="/v1/x", input_file="f", window_s=60, metadata=None, output_expires_s=None
    )


async def accepted(store: Batches) -> Batch:
    batch = await create(store)
    await store.accept(batch, LINES)
    return await store.get("me", batch.id)


@settings(deadline=None, max_examples=25)
@given(tries=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.booleans()), max_size=12))
async def test_counts_are_those_of_the_first_try_of_each_line(tries: list[tuple[int, bool]]) -> None:
    state = open_state(None)
    store = Batches(state)
    batch = await accepted(store)
    first: dict[int, bool] = {}
    for number, failed in tries:
        fresh = await store.finish_line(batch, number, {"n": number}, failed=failed, usage=USAGE)
        assert fresh == (number not in first)
        first.setdefault(number, failed)
    now = await store.get("me", batch.id)
    failed_count = sum(first.values())
    assert now.counts == {"total": 3, "completed": len(first) - failed_count, "failed": failed_count}
    assert now.usage["output_tokens"] == 3 * len(first)
    assert {line.number for line in await store.waiting(batch, 9, [])} == {1, 2, 4} - first.keys()
    state.close()


async def test_a_result_that_comes_after_a_cancel_does_not_count(state: Database) -> None:
    store = Batches(state)
    batch = await accepted(store)
    await store.finish_line(batch, 1, {}, failed=False, usage=USAGE)
    assert (await store.cancel("me", batch.id)).status == "cancelling"
    assert not await store.finish_line(batch, 2, {}, failed=False, usage=USAGE)
    await store.give_up(batch, "batch_cancelled", "It was cancelled.")
    rows: list[Any] = await store.results(batch, "failed", 0, 9)
    assert [row["line"] for row in rows] == [2, 4]
    await store.close(batch, "cancelled", output_file="o", error_file="e")
    ended = await store.get("me", batch.id)
    assert (ended.status, ended.counts) == ("cancelled", {"total": 3, "completed": 1, "failed": 2})
    assert set(ended.times) == {"in_progress_at", "cancelling_at", "cancelled_at"}
    with pytest.raises(InvalidRequest, match="cancelled"):
        await store.cancel("me", batch.id)


async def test_a_cancel_during_validation_wins(state: Database) -> None:
    store = Batches(state)
    batch = await create(store)
    await store.cancel("me", batch.id)
    await store.accept(batch, LINES)
    await store.refuse(batch, [LineError("empty_file", "x", None)])
    assert (await store.get("me", batch.id)).status == "cancelling"


async def test_owners_and_limits(state: Database) -> None:
    store = Batches(state, max_open=2)
    batch = await create(store)
    await create(store)
    with pytest.raises(QueueFull):
        await create(store)
    await create(store, "you")
    for attempt in (store.get("you", batch.id), store.cancel("you", batch.id)):
        with pytest.raises(NotFound):
            await attempt
    await store.refuse(batch, [LineError("empty_file", "x", None)])
    await create(store)
    assert [one.status for one in await store.of_owner("me")] == ["failed", "validating", "validating"]
