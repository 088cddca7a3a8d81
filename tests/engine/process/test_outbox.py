from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.engine.merging import ChunkMerger
from edgewise.engine.messages import (
    Accepted,
    Chunks,
    Heartbeat,
    ToService,
    decode_to_service,
)
from edgewise.engine.outbox import Outbox
from edgewise.engine.request import RequestStats, TokenChunk, TokenLogprobs
from edgewise.engine.transport import FrameReader, FrameWriter

STATS = RequestStats(
    prompt_tokens=1, cached_tokens=0, completion_tokens=1, queued_s=0.0, prefill_s=0.0, decode_s=0.0
)  # fmt: skip


def chunk(name: str, offset: int, size: int, *, logprobs: bool = False, last: bool = False) -> TokenChunk:
    tokens = tuple(range(offset, offset + size))
    return TokenChunk(
        request_id=name,
        offset=offset,
        tokens=tokens,
        logprobs=tuple(TokenLogprobs(token=token, logprob=-1.0) for token in tokens) if logprobs else None,
        finish="stop" if last else None,
        stats=STATS if last else None,
    )


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans(), st.integers(0, 7))),
    st.booleans(),
)
def test_merging_and_splitting_lose_nothing(steps: list[tuple[str, int, bool, int]], logprobs: bool) -> None:
    merger = ChunkMerger()
    offsets: dict[str, int] = dict.fromkeys("abc", 0)
    finished: set[str] = set()
    taken: list[TokenChunk] = []
    for name, size, last, take in steps:
        if name not in finished:
            merger.add(chunk(name, offsets[name], size, logprobs=logprobs, last=last))
            offsets[name] += size
            finished |= {name} if last else set()
        batch = merger.take(take)
        assert sum(len(part.tokens) for part in batch) <= take
        taken += batch
    taken += merger.take(10**6)
    assert len(merger) == 0
    for name, length in offsets.items():
        parts = [part for part in taken if part.request_id == name]
        position = 0
        for part in parts:
            assert part.offset == position
            position += len(part.tokens)
            assert (part.logprobs is not None) == logprobs or not part.tokens
            assert part.logprobs is None or tuple(entry.token for entry in part.logprobs) == part.tokens
        assert [token for part in parts for token in part.tokens] == list(range(length))
        assert [part.finish for part in parts if part.finish] == (["stop"] if name in finished else [])
        assert not parts or (parts[-1].finish is not None) == (name in finished)


@pytest.fixture
def ends() -> Iterator[tuple[Outbox, FrameReader[ToService]]]:
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield Outbox(FrameWriter(left), epoch=4), FrameReader(right, decode_to_service)


def drain(outbox: Outbox, reader: FrameReader[ToService]) -> list[ToService]:
    received: list[ToService] = []
    done = False
    while not done:
        done = outbox.flush()
        while (messages := reader.read()) is not None:
            received += messages
    return received


def test_a_service_that_does_not_read_costs_one_chunk_per_request(
    ends: tuple[Outbox, FrameReader[ToService]],
) -> None:
    outbox, reader = ends
    names = [f"r{number}" for number in range(8)]
    steps = 20_000
    blocked = False
    for step in range(steps):
        blocked |= not outbox.put_chunks([chunk(name, step, 1) for name in names])
        outbox.put(Heartbeat(epoch=4, steps=step, step_started_ago=None, rss_bytes=0))
    assert blocked
    assert "0 answers, 1 reports, ChunkMerger(8 requests" in repr(outbox)
    outbox.put(Accepted(epoch=4, id="late"))
    received = drain(outbox, reader)
    batches = [message for message in received if isinstance(message, Chunks)]
    assert all(batch.epoch == 4 for batch in batches)
    assert len(batches) < steps / 4
    for name in names:
        parts = [part for batch in batches for part in batch.chunks if part.request_id == name]
        assert [token for part in parts for token in part.tokens] == list(range(steps))
    beats = [message.steps for message in received if isinstance(message, Heartbeat)]
    assert beats[-1] == steps - 1
    assert Accepted(epoch=4, id="late") in received


def test_answers_go_before_reports_and_reports_before_chunks(ends: tuple[Outbox, FrameReader[ToService]]) -> None:
    outbox, reader = ends
    while outbox.put(Accepted(epoch=4, id="x" * 1000)):
        pass
    outbox.put_chunks([chunk("a", 0, 1)])
    outbox.put(Heartbeat(epoch=4, steps=1, step_started_ago=0.5, rss_bytes=0))
    outbox.put(Heartbeat(epoch=4, steps=2, step_started_ago=None, rss_bytes=0))
    outbox.put(Accepted(epoch=4, id="b"))
    kinds = [type(message).__name__ for message in drain(outbox, reader)]
    assert kinds[-4:] == ["Accepted", "Accepted", "Heartbeat", "Chunks"]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def paced() -> Iterator[tuple[Outbox, FrameReader[ToService], Clock]]:
    """An outbox whose tokens wait for up to 25 ms."""
    left, right = socket.socketpair()
    clock = Clock()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield Outbox(FrameWriter(left), interval_s=0.025, now=clock), FrameReader(right, decode_to_service), clock


def arrived(reader: FrameReader[ToService]) -> list[TokenChunk]:
    return [one for message in reader.read() or () if isinstance(message, Chunks) for one in message.chunks]


def test_tokens_of_quick_steps_come_together_and_no_later_than_the_interval(
    paced: tuple[Outbox, FrameReader[ToService], Clock],
) -> None:
    outbox, reader, clock = paced
    outbox.put_chunks([chunk("a", 0, 1)], more=True)
    assert [one.tokens for one in arrived(reader)] == [(0,)]
    told, waiting_since = [], clock.seconds
    for step in range(1, 200):
        clock.seconds += 0.004
        assert outbox.put_chunks([chunk("a", step, 1)], more=True)
        parts = arrived(reader)
        if parts:
            assert clock.seconds - waiting_since < 0.025
            waiting_since = clock.seconds
        told += parts
    assert [token for one in told for token in one.tokens] == list(range(1, 1 + 6 * len(told)))
    assert len(told) == 199 // 6
    assert {len(one.tokens) for one in told} == {6}
    assert [gap for one in told for gap in one.gaps] == pytest.approx([0.004] * 6 * len(told))


def test_slow_steps_send_each_token_by_itself(paced: tuple[Outbox, FrameReader[ToService], Clock]) -> None:
    outbox, reader, clock = paced
    for step in range(5):
        clock.seconds += 0.02
        outbox.put_chunks([chunk("a", step, 1)], more=True)
        assert [one.tokens for one in arrived(reader)] == [(step,)]


def test_first_tokens_and_ends_take_along_what_waits(paced: tuple[Outbox, FrameReader[ToService], Clock]) -> None:
    outbox, reader, clock = paced
    clock.seconds += 0.001
    outbox.put_chunks([chunk("a", 0, 1)], more=True)
    assert [one.tokens for one in arrived(reader)] == [(0,)]
    outbox.put_chunks([chunk("a", 1, 1)], more=True)
    assert not arrived(reader)
    outbox.put_chunks([chunk("a", 2, 1), chunk("b", 0, 1)], more=True)
    assert [(one.request_id, one.tokens) for one in arrived(reader)] == [("a", (1, 2)), ("b", (0,))]
    outbox.put_chunks([chunk("a", 3, 1)], more=True)
    assert not arrived(reader)
    outbox.put_chunks([chunk("a", 4, 1, last=True)], more=True)
    assert [(one.tokens, one.finish) for one in arrived(reader)] == [((3, 4), "stop")]
    outbox.put_chunks([chunk("b", 1, 1)], more=True)
    assert not arrived(reader)
    outbox.put_chunks([], more=False)  # nothing will follow
    assert [one.tokens for one in arrived(reader)] == [(1,)]


def test_tokens_of_an_answer_that_is_read_whole_wake_nobody(
    paced: tuple[Outbox, FrameReader[ToService], Clock],
) -> None:
    outbox, reader, clock = paced
    outbox.whole.add("a")
    outbox.put_chunks([chunk("a", 0, 1)], more=True)
    assert arrived(reader)  # the time to the first token is told in any case
    for step in range(1, 100):
        clock.seconds += 0.009
        outbox.put_chunks([chunk("a", step, 1)], more=True)
        assert not arrived(reader)
    outbox.put_chunks([chunk("b", 0, 1)], more=True)  # somebody reads that one
    assert [one.tokens for one in arrived(reader)] == [tuple(range(1, 100)), (0,)]
    clock.seconds += 0.9
    outbox.put_chunks([chunk("a", 100, 1, last=True)], more=True)
    assert [one.tokens for one in arrived(reader)] == [(100,)]
    assert not outbox.whole


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9))), st.integers(1, 40))
def test_each_token_but_the_first_has_the_time_of_its_step(steps: list[tuple[int, int]], room: int) -> None:
    merger = ChunkMerger()
    merger.add(chunk("a", 0, 1))
    offset = 1
    expected: list[float] = []
    for size, milliseconds in steps:
        gaps = (milliseconds / size,) * size
        merger.add(chunk("a", offset, size), gaps)
        offset, expected = offset + size, [*expected, *gaps]
    found: list[float] = []
    while len(merger):
        (part,) = merger.take(room)
        assert len(part.gaps) == len(part.tokens) - (part.offset == 0)
        found += part.gaps
    assert found == expected


@pytest.mark.parametrize(("answers", "steps"), [(1, 6), (9, 12), (17, 18), (40, 18)])
def test_tokens_of_many_answers_wait_longer(
    paced: tuple[Outbox, FrameReader[ToService], Clock], answers: int, steps: int
) -> None:
    outbox, reader, clock = paced
    names = [f"r{number}" for number in range(answers)]
    outbox.put_chunks([chunk(name, 0, 1) for name in names], more=True)
    assert len(arrived(reader)) == answers
    for step in range(1, steps + 1):
        assert not arrived(reader)
        clock.seconds += 0.004
        outbox.put_chunks([chunk(name, step, 1) for name in names], more=True)
    assert [one.tokens for one in arrived(reader)] == [tuple(range(1, steps + 1))] * answers
