"""An answer that two engines may make: where it goes on, when both are asked, and what its receipt can tell."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgewise.core.errors import EngineUnavailable, LinkLost, NotAuthenticated, QueueFull
from edgewise.edge.offload.continuation import Begin, Complete, Course, Fail, Side, may_continue
from edgewise.edge.offload.continuing import ContinuingEngine, Rules
from edgewise.engine.request import GenerateRequest, TokenChunk
from tests.api.harness import until
from tests.edge.offload.double import CLASS, FakeTransport, LocalEngine, ask, expected, remote

DEAD = [0] * 10_000


def both(
    transport: FakeTransport,
    local: LocalEngine,
    *,
    first: Side = "cloud",
    patience_s: float = 0.2,
    hedge_s: float = 0.0,
    go_on: bool = True,
) -> ContinuingEngine:
    engines = {"cloud": remote(transport, patience_s=patience_s), "local": local}
    return ContinuingEngine(first, engines, Rules(go_on=go_on, hedge_s=hedge_s), why="as planned")  # type: ignore[arg-type]


async def read(engine: ContinuingEngine, request: GenerateRequest) -> list[TokenChunk]:
    chunks = [chunk async for chunk in await engine.submit(request)]
    await engine.engines["cloud"].road.parting.close()  # type: ignore[attr-defined]
    return chunks


def tokens(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.tokens]


def segments(chunks: list[TokenChunk]) -> list[tuple[str, int]]:
    stats = chunks[-1].stats
    assert stats is not None
    return [(one.where, one.offset) for one in stats.segments]


@settings(max_examples=25, deadline=None)
@given(lost=st.integers(0, 12), have=st.integers(0, 3))
def test_a_cloud_that_is_lost_for_good_is_followed_by_the_local_engine(lost: int, have: int) -> None:
    request = ask(output=tuple(expected(ask())[:have]))
    lost = min(lost, 12 - have)
    transport, local = FakeTransport(cuts=[lost, *DEAD]), LocalEngine()
    chunks = asyncio.run(read(both(transport, local, patience_s=0.02), request))
    assert tokens(chunks) == expected(request)[have:]
    assert chunks[-1].finish == "length"
    at = have + lost
    if at == 12:
        assert local.requests == []
    else:
        assert segments(chunks) == ([("cloud", have)] if lost else []) + [("local", at)]
        assert local.requests[0].output == tuple(expected(request)[:at])
    assert [control.op for control in transport.said] == ["cancel"]


@pytest.mark.parametrize("first", ["cloud", "local"])
def test_the_side_that_goes_on_has_what_is_left_of_the_deadline(first: Side) -> None:
    transport, local = FakeTransport(cuts=[5, *DEAD]), LocalEngine()
    if first == "local":
        transport, local = FakeTransport(), LocalEngine(breaks_at=4, pause_s=0.2)
    asyncio.run(read(both(transport, local, first=first), ask(deadline_s=20.0)))
    ttl_ms = transport.jobs["r@4"].ttl_ms if first == "local" else None
    left = local.requests[0].deadline_s if ttl_ms is None else ttl_ms / 1000
    assert left is not None
    assert 0 < left < 20.0 - 0.15


def test_the_segments_name_offset_class_and_reason_and_the_link_is_paid_all_the_same() -> None:
    chunks = asyncio.run(read(both(FakeTransport(cuts=[5, *DEAD]), LocalEngine()), ask()))
    stats = chunks[-1].stats
    assert stats is not None
    assert stats.link is not None
    assert stats.link.up_bytes == 100
    assert [one.numeric_class for one in stats.segments] == [CLASS, CLASS]
    assert stats.segments[0].why == "as planned"
    assert "link_lost" in stats.segments[1].why
    assert stats.completion_tokens == 12


def test_a_local_engine_that_is_lost_for_good_is_followed_by_the_cloud() -> None:
    chunks = asyncio.run(read(both(FakeTransport(), LocalEngine(breaks_at=4), first="local"), ask()))
    assert tokens(chunks) == expected(ask())
    assert segments(chunks) == [("local", 0), ("cloud", 4)]


def test_an_answer_that_stayed_here_has_no_segments_and_no_link() -> None:
    chunks = asyncio.run(read(both(FakeTransport(), LocalEngine(), first="local"), ask()))
    stats = chunks[-1].stats
    assert stats is not None
    assert (stats.segments, stats.link) == ((), None)


def test_a_side_that_refuses_is_replaced_before_anything_was_delivered() -> None:
    for refusal in (NotAuthenticated("Wrong key."), QueueFull("Full."), EngineUnavailable("Restarting.")):
        chunks = asyncio.run(read(both(FakeTransport(refuse=[refusal]), LocalEngine()), ask()))
        assert segments(chunks) == [("local", 0)]
    full = LocalEngine(refuse=QueueFull("Full."))
    assert segments(asyncio.run(read(both(FakeTransport(), full, first="local"), ask()))) == [("cloud", 0)]


def test_where_both_refuse_the_last_one_is_heard() -> None:
    engine = both(FakeTransport(losses=10_000), LocalEngine(refuse=QueueFull("Full.")), patience_s=0.05)
    with pytest.raises(QueueFull):
        asyncio.run(read(engine, ask()))
    alone = both(FakeTransport(losses=10_000), LocalEngine(), patience_s=0.05, go_on=False)
    with pytest.raises(LinkLost):
        asyncio.run(read(alone, ask()))


def test_by_policy_an_answer_ends_where_its_cloud_is_lost() -> None:
    local = LocalEngine()
    chunks = asyncio.run(read(both(FakeTransport(cuts=[5, *DEAD]), local, go_on=False), ask()))
    assert (chunks[-1].finish, chunks[-1].error_code) == ("error", "link_lost")
    assert tokens(chunks) == expected(ask())[:5]
    assert local.requests == []


def test_a_slow_side_is_hedged_the_first_token_wins_and_both_costs_are_told() -> None:
    transport, local = FakeTransport(hang=True), LocalEngine()
    chunks = asyncio.run(read(both(transport, local, hedge_s=0.05), ask()))
    assert tokens(chunks) == expected(ask())
    assert segments(chunks) == [("local", 0)]
    stats = chunks[-1].stats
    assert stats is not None
    assert stats.link is not None
    assert stats.link.hedged
    assert stats.link.up_bytes == 100
    assert [control.op for control in transport.said] == ["cancel"]


@pytest.mark.parametrize("hedge_s", [0.0, 0.01])
def test_an_answer_that_is_being_read_can_be_cancelled_on_both_sides(hedge_s: float) -> None:
    async def run() -> tuple[list[str], int]:
        transport, local = FakeTransport(hang=True), LocalEngine(pause_s=3600.0)
        engine = both(transport, local, hedge_s=hedge_s)
        stream = await engine.submit(ask())
        reader = asyncio.ensure_future(anext(stream))
        await until(lambda: transport.connections == 1 and len(local.requests) == bool(hedge_s))
        reader.cancel()
        await stream.aclose()
        await asyncio.gather(reader, return_exceptions=True)
        await engine.engines["cloud"].road.parting.close()  # type: ignore[attr-defined]
        return [control.op for control in transport.said], local.aborted

    assert asyncio.run(run()) == (["cancel"], 1 if hedge_s else 0)


def test_a_hedge_that_loses_is_cancelled() -> None:
    transport, local = FakeTransport(), LocalEngine(pause_s=30.0)
    chunks = asyncio.run(read(both(transport, local, first="local", hedge_s=0.05), ask()))
    assert segments(chunks) == [("cloud", 0)]
    assert tokens(chunks) == expected(ask())
    assert local.aborted == 1


def test_a_side_that_breaks_while_the_other_one_races_ends_nothing() -> None:
    transport, local = FakeTransport(cuts=DEAD), LocalEngine(pause_s=0.4)
    chunks = asyncio.run(read(both(transport, local, hedge_s=0.05, patience_s=0.2), ask()))
    assert segments(chunks) == [("local", 0)]
    assert tokens(chunks) == expected(ask())


@pytest.mark.parametrize("first", ["cloud", "local"])
def test_closing_it_cancels_whatever_runs(first: Literal["cloud", "local"]) -> None:
    async def leave() -> tuple[int, list[str]]:
        transport, local = FakeTransport(hang=True), LocalEngine(pause_s=30.0)
        engine = both(transport, local, first=first, hedge_s=0.05)
        stream = await engine.submit(ask())
        reader = asyncio.create_task(stream.__anext__())
        await until(lambda: transport.connections == 1 and len(local.requests) == 1)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await stream.aclose()
        await engine.engines["cloud"].road.parting.close()  # type: ignore[attr-defined]
        return local.aborted, [control.op for control in transport.said]

    assert asyncio.run(leave()) == (1, ["cancel"])


def test_what_the_request_itself_does_not_allow_is_tried_nowhere_else() -> None:
    assert not may_continue("cloud", "cancelled")
    assert not may_continue("local", "deadline_exceeded")
    assert not may_continue("local", "invalid_value")
    assert may_continue("cloud", "context_length_exceeded")
    assert may_continue("cloud", "range_not_satisfiable")
    assert may_continue("cloud", "gone")
    assert may_continue("local", "a code of tomorrow")


class Answers(RuleBasedStateMachine):
    """Any order of what can happen to an answer: each side begins once, tokens are never lost, the end has a reason."""

    def __init__(self) -> None:
        super().__init__()
        self.course = Course("cloud", "local", max_tokens=6)
        self.begun: list[Side] = ["cloud"]
        self.delivered: list[int] = []
        self.ended = False

    @precondition(lambda self: not self.ended and len(self.delivered) < 6)
    @rule(data=st.data(), count=st.integers(1, 3))
    def give(self, data: st.DataObject, count: int) -> None:
        side = data.draw(st.sampled_from(sorted(self.course.running)))
        new = list(range(len(self.delivered), min(6, len(self.delivered) + count)))
        losers = self.course.tokens(side, new)
        self.delivered += new
        assert side not in losers
        assert self.course.running == {side}

    @precondition(lambda self: not self.ended and self.course.can_hedge)
    @rule()
    def hedge(self) -> None:
        begin = self.course.hedge(0.5)
        self.begun.append(begin.side)
        assert self.delivered == []

    @precondition(lambda self: not self.ended)
    @rule(data=st.data(), code=st.sampled_from(["link_lost", "engine_error", "cancelled", "gone"]))
    def lose(self, data: st.DataObject, code: str) -> None:
        side = data.draw(st.sampled_from(sorted(self.course.running)))
        move = self.course.broke(side, code, "as ordered")
        match move:
            case None:
                assert self.course.running
            case Begin(other):
                self.begun.append(other)
                assert code != "cancelled"
            case Complete():
                assert len(self.delivered) == 6
                self.ended = True
            case Fail(told):
                assert told == code
                self.ended = True

    @precondition(lambda self: self.ended)
    @rule()
    def rest(self) -> None:
        """Nothing more can happen."""

    @invariant()
    def each_side_begins_once(self) -> None:
        assert len(set(self.begun)) == len(self.begun)
        assert self.course.output == self.delivered
        assert self.ended or self.course.running <= set(self.begun)
        assert self.ended == (not self.course.running)


TestAnswers = Answers.TestCase
TestAnswers.settings = settings(max_examples=100, deadline=None)
