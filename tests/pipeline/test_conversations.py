"""Kept answers: whose they are, how they are continued, and when they go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from edgewise.core.clock import FakeClock
from edgewise.core.errors import NotFound
from edgewise.core.privacy import Privacy
from edgewise.core.sqlite import Database
from edgewise.pipeline.conversations import Conversations, Kept
from edgewise.pipeline.state import open_state


@pytest.fixture
def state() -> Iterator[Database]:
    database = open_state(None)
    yield database
    database.close()


def kept(id: str, previous: str | None = None) -> Kept:
    body: dict[str, Any] = {"id": id, "output": [{"answer": id}]}
    return Kept(id=id, body=body, input=[{"question": id}], previous=previous)


async def test_a_conversation_is_read_in_its_order(state: Database) -> None:
    store = Conversations(state)
    for id, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        await store.put("me", kept(id, previous))
    items = (await store.history("me", "c")).items
    assert items == [part for id in "abc" for part in ({"question": id}, {"answer": id})]


async def test_a_conversation_has_the_strictest_label_of_its_answers(state: Database) -> None:
    store = Conversations(state)
    labels = {"old": None, "a": Privacy.ANY, "b": Privacy.PRIVATE, "c": Privacy.SITE}
    previous = None
    found = []
    for id, label in labels.items():
        await store.put("me", replace(kept(id, previous), privacy=label))
        found.append((await store.history("me", id)).privacy)
        previous = id
    assert found == [None, Privacy.ANY, Privacy.PRIVATE, Privacy.PRIVATE]


async def test_owners_do_not_see_each_other(state: Database) -> None:
    store = Conversations(state)
    await store.put("me", kept("a"))
    for attempt in (store.get("you", "a"), store.history("you", "a"), store.delete("you", "a")):
        with pytest.raises(NotFound):
            await attempt
    assert (await store.get("me", "a")).body["id"] == "a"


async def test_a_deleted_answer_breaks_what_continued_it_by_name(state: Database) -> None:
    store = Conversations(state)
    await store.put("me", kept("a"))
    await store.put("me", kept("b", "a"))
    await store.delete("me", "a")
    with pytest.raises(NotFound, match="'a'"):
        await store.history("me", "b")


async def test_age_counts_from_the_last_use_of_the_conversation(state: Database) -> None:
    clock = FakeClock()
    store = Conversations(state, keep_s=100, clock=clock)
    await store.put("me", kept("a"))
    clock.advance(60)
    await store.put("me", kept("b", "a"))
    await store.history("me", "b")  # continues both
    clock.advance(60)
    assert len((await store.history("me", "b")).items) == 4
    clock.advance(101)
    with pytest.raises(NotFound):
        await store.get("me", "b")
    await store.prune()
    assert await state.run(lambda one: one.execute("SELECT count(*) FROM responses").fetchone()[0]) == 0


async def test_the_number_is_limited_for_each_owner(state: Database) -> None:
    clock = FakeClock()
    store = Conversations(state, keep_count=2, clock=clock)
    await store.put("you", kept("yours"))
    for id in ("a", "b", "c"):
        clock.advance(1)
        await store.put("me", kept(id))
    with pytest.raises(NotFound):
        await store.get("me", "a")
    for owner, id in (("me", "b"), ("me", "c"), ("you", "yours")):
        await store.get(owner, id)
