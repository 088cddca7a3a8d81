"""A job whose road leads over another transport: the same job where the cloud knows the device there too, else a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from edgewise.edge.offload.follow import Patience, Road
from edgewise.edge.offload.parting import Parting
from edgewise.edge.offload.remote import RemoteEngine
from edgewise.engine.request import LinkUse, TokenChunk
from tests.edge.offload.double import CAPABILITY, FakeTransport, ask, expected

PATIENCE = Patience(submit_s=60.0, stream_s=60.0)


def said(*transports: FakeTransport) -> list[tuple[str, str]]:
    return [(control.op, control.key) for transport in transports for control in transport.said]


async def moving(both: Sequence[FakeTransport], moves: Sequence[int]) -> list[TokenChunk]:
    """The answer, whose connection breaks after each of `moves` tokens and is made anew over the other transport."""
    for number, (before, after) in enumerate(zip((0, *moves), moves, strict=False)):
        both[number % 2].cuts.append(after - before)
    current = 0
    road = Road(lambda: both[current], Parting(), device="dev")
    stream = await RemoteEngine(road, CAPABILITY, vocab_size=300, patience=PATIENCE).submit(ask())
    chunks: list[TokenChunk] = []
    async for chunk in stream:
        chunks.append(chunk)
        current = sum(move <= chunk.offset + 1 for move in moves) % 2
    await road.parting.close()
    return chunks


def tokens(chunks: Sequence[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.tokens]


@pytest.mark.parametrize("moves", [[4], [3, 6], [1, 2, 9]])
def test_where_both_know_the_device_by_one_name_it_is_one_job(moves: list[int]) -> None:
    first, second = FakeTransport(), FakeTransport(name="mqtt")
    second.jobs = first.jobs  # one table behind both
    chunks = asyncio.run(moving((first, second), moves))
    assert tokens(chunks) == expected(ask())
    assert first.submits + second.submits == 1
    last = second if len(moves) % 2 else first
    assert said(first, second) == said(last) == [("ack", "r")]
    stats = chunks[-1].stats
    assert stats is not None
    assert isinstance(stats.link, LinkUse)
    assert stats.link.up_bytes <= 100 * 2  # a road that is taken again is not counted again


def test_where_they_know_it_by_two_the_first_job_ends_where_the_second_begins() -> None:
    first, second = FakeTransport(), FakeTransport(name="mqtt")
    assert tokens(asyncio.run(moving((first, second), [4]))) == expected(ask())
    assert (list(first.jobs), list(second.jobs)) == (["r"], ["r@4"])
    assert (said(first), said(second)) == ([("cancel", "r")], [("ack", "r@4")])


@pytest.mark.parametrize("one_name", [True, False])
def test_a_job_whose_acceptance_was_lost_is_wanted_once(one_name: bool) -> None:
    async def run() -> tuple[FakeTransport, FakeTransport]:
        first, second = FakeTransport(lost_answers=1), FakeTransport(name="mqtt")
        if one_name:
            second.jobs = first.jobs
        road = Road(lambda: second if first.submits else first, Parting())
        stream = await RemoteEngine(road, CAPABILITY, vocab_size=300, patience=PATIENCE).submit(ask())
        assert tokens([chunk async for chunk in stream]) == expected(ask())
        await road.parting.close()
        return first, second

    first, second = asyncio.run(run())
    assert said(second) == [("ack", "r")]
    assert said(first) == ([] if one_name else [("cancel", "r")])
