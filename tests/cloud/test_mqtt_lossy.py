"""Streams over MQTT under loss: whatever is lost, repeated or overtaken, a stream arrives whole, and soon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.edge.offload.inflow import PAUSES_S
from edgewise.edge.offload.mqtt import ANSWER_S
from edgewise.wire import topics
from edgewise.wire.asking import CREDIT
from edgewise.wire.messages import Chunk, GenerateWork, JobControl, JobRequest
from edgewise.wire.stream_log import START
from tests.cloud.mqtt_ether import Ether, EtherWorld, MemoryDesk
from tests.fakes.instant import instantly

TOKENS = 80
"""More than may be on their way at once."""


async def run(ether: Ether, desk: MemoryDesk, **reading: float) -> float:
    """Read a stream; the seconds that it took."""
    async with EtherWorld(ether, desk) as world:
        assert await world.read(**reading) == [*range(desk.tokens)]
        return asyncio.get_running_loop().time()


def counted(ether: Ether) -> int:
    """What the device sent of its job."""
    return sum(topic.startswith("f/1/d/dev/up/job/") for topic in ether.carried)


@pytest.mark.parametrize("pace_s", [0.0, 0.02, 0.4])
def test_any_one_lost_message_costs_one_silence_at_most(pace_s: float) -> None:
    quiet = Ether()
    undisturbed = instantly(run(quiet, MemoryDesk(tokens=TOKENS, pace_s=pace_s)))
    total, said = len(quiet.carried), counted(quiet)
    assert total > TOKENS
    for lost in range(total):
        ether = Ether(lose=lambda topic, number, lost=lost: number == lost)  # type: ignore[misc]
        took = instantly(run(ether, MemoryDesk(tokens=TOKENS, pace_s=pace_s)))
        topic = ether.carried[lost]
        assert took <= undisturbed + max(PAUSES_S[0], ANSWER_S[0]) + 0.1, (lost, topic)
        assert counted(ether) <= said + 2, (lost, topic)


def test_a_chunk_that_is_missing_is_asked_for_as_soon_as_the_next_one_has_come() -> None:
    undisturbed = instantly(run(Ether(), MemoryDesk(tokens=TOKENS, pace_s=0.02)))
    chunks = 0

    def lose(topic: str, number: int) -> bool:
        nonlocal chunks
        chunks += topic.startswith("f/1/d/dev/dn/job/")
        return chunks == 40

    assert instantly(run(Ether(lose=lose), MemoryDesk(tokens=TOKENS, pace_s=0.02))) <= undisturbed + 0.1


def test_a_long_way_is_no_loss() -> None:
    """Answers take longer than the first silences: what was asked twice is sent twice, and the stream goes on."""
    ether = Ether(latency_s=1.5)
    took = instantly(run(ether, MemoryDesk(tokens=TOKENS, pace_s=0.05)))
    assert took < TOKENS * 0.05 + 6 * 3.0
    assert counted(ether) < 20


def test_all_grants_may_be_lost() -> None:
    """The question after a silence says how far the reader is, which grants as much."""
    controls = 0

    def lose(topic: str, number: int) -> bool:
        nonlocal controls
        controls += topic.startswith("f/1/d/dev/up/job/")
        return topic.startswith("f/1/d/dev/up/job/") and controls % 3 == 2

    took = instantly(run(Ether(lose=lose), MemoryDesk(tokens=10 * CREDIT)))
    assert took < 10 * (PAUSES_S[0] + 1)


def test_a_consumer_that_stands_still_is_not_flooded() -> None:
    async def stands_still() -> None:
        async with EtherWorld(Ether(), MemoryDesk(tokens=2 * TOKENS)) as world:
            await world.device.submit(JobRequest(key="k", work=GenerateWork(model="m", prompt=(1,))))
            async with aclosing(world.device.events("k", START)) as stream:
                await anext(stream)
                (inflow,) = world.device._inflows.values()

                async def waiting() -> int:
                    await asyncio.sleep(10.0)
                    return sum(isinstance(event, Chunk) for _, event in inflow._arrived)

                assert await waiting() == CREDIT - 1
                grant = world.link.sealer.seal(JobControl(key="k", op="grant", after="1.5", credit=CREDIT))
                for _ in range(3):  # a broker may deliver it more than once
                    await world.link.send(topics.job_control("dev", topics.job_id("k")), grant)
                assert await waiting() == CREDIT - 1 + 5
                rest = [token async for event in stream if isinstance(event, Chunk) for token in event.tokens or ()]
                assert rest == [*range(1, 2 * TOKENS)]

    instantly(stands_still())


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    repeat=st.sampled_from([0.0, 0.1]),
    jitter_s=st.sampled_from([0.0, 0.02, 1.5]),
    pace_s=st.sampled_from([0.0, 0.02, 3.0]),
    reader_s=st.sampled_from([0.0, 0.05]),
    cuts=st.lists(st.floats(0.01, 10.0), max_size=4),
    restarts=st.lists(st.floats(0.01, 10.0), max_size=2),
)
def test_streams_arrive_whole_over_the_worst_of_brokers(
    seed: int,
    loss: float,
    repeat: float,
    jitter_s: float,
    pace_s: float,
    reader_s: float,
    cuts: list[float],
    restarts: list[float],
) -> None:
    rng = random.Random(seed)
    ether = Ether(lose=lambda topic, number: rng.random() < loss, repeat=repeat, jitter_s=jitter_s, rng=rng)

    async def disturb(times: list[float], what: Callable[[], Any]) -> None:
        for pause in times:
            await asyncio.sleep(pause)
            result = what()
            if result is not None:
                await result

    async def disturbed() -> float:
        async with EtherWorld(ether, MemoryDesk(tokens=TOKENS, pace_s=pace_s)) as world:
            disturbing = [
                asyncio.create_task(disturb(cuts, world.link.cut)),
                asyncio.create_task(disturb(restarts, world.intake._flows.stop)),  # a cloud that forgets what it sends
            ]
            assert await world.read(reader_s=reader_s) == [*range(TOKENS)]
            for task in disturbing:
                task.cancel()
            await asyncio.gather(*disturbing, return_exceptions=True)
            return asyncio.get_running_loop().time()

    took = instantly(disturbed())
    assert took < TOKENS * (pace_s + reader_s) + 300 * (1 + 10 * loss)


def test_a_cloud_that_is_gone_is_given_up_within_seconds() -> None:
    """The broker has every question; nobody answers."""

    async def lost() -> float:
        async with EtherWorld(Ether(), MemoryDesk(tokens=TOKENS, pace_s=0.02)) as world:
            reading = asyncio.create_task(world.read())
            await asyncio.sleep(1.0)
            world.ether.lose = lambda topic, number: topic.startswith("f/1/d/dev/up/")
            await world.intake._flows.stop()
            since = asyncio.get_running_loop().time()
            await world.lost.wait()
            took = asyncio.get_running_loop().time() - since
            world.ether.lose = lambda topic, number: False
            assert await reading == [*range(TOKENS)]
            return took

    assert sum(PAUSES_S) - 1 <= instantly(lost()) <= sum(PAUSES_S) + 1
