"""Routing and resuming without processes: the rules one by one."""

from __future__ import annotations

import pytest

from edgewise.core.errors import EngineUnavailable, InvalidRequest, OutOfMemory, QueueFull
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from tests.fakes.book import LIMIT, Consumer, World, ask, token, undisturbed


def started(*requests: GenerateRequest) -> tuple[World, list[Consumer]]:
    world = World()
    world.up()
    consumers = [world.consumers[world.open(request)] for request in requests]
    world.deliver()
    return world, consumers


def test_a_final_chunk_lost_in_a_crash_is_made_up_for() -> None:
    stop = ask("a", 5)
    stopped = ask("stop", 5, stop_token_ids=(token(stop, 0),))
    world, consumers = started(ask("full", 2), stopped)
    for consumer in consumers:
        tokens, _ = undisturbed(consumer.request)
        key = next(key for key, value in world.consumers.items() if value is consumer)
        world.act(world.book.chunks(1, [TokenChunk(request_id=key, offset=0, tokens=tuple(tokens))], world.now))
    sent = world.sent
    world.now = 3.0
    world.crash()
    assert [consumer.last.finish for consumer in consumers if consumer.last] == [
        undisturbed(consumer.request)[1] for consumer in consumers
    ]
    world.up()
    assert world.sent == sent
    last = consumers[0].last
    assert last is not None
    assert last.stats is not None
    assert (last.offset, last.tokens, last.stats.completion_tokens, last.stats.restarts) == (2, (), 2, 1)


def test_stop_goes_before_length() -> None:
    first = token(ask("a"), 0)
    world, (consumer,) = started(ask("a", 1, stop_token_ids=(first,)))
    key = next(iter(world.consumers))
    world.act(world.book.chunks(1, [TokenChunk(request_id=key, offset=0, tokens=(first,))], 0.0))
    world.crash()
    assert consumer.last is not None
    assert consumer.last.finish == "stop"


def test_a_full_context_ends_the_answer_here() -> None:
    world = World()
    world.epoch = 1
    world.act(world.book.up(1, 4, 0.0))
    consumer = world.consumers[world.open(ask("ab", 10))]
    world.step(2)
    world.deliver()
    world.crash()
    assert consumer.last is not None
    assert (consumer.last.finish, len(consumer.output)) == ("length", 2)


def test_a_request_that_came_complete_is_finished_without_an_engine() -> None:
    world = World()
    request = GenerateRequest(id="a", prompt=(1,), sampling=SamplingParams(max_tokens=2), output=(7, 8))
    consumer = world.consumers[world.open(request)]
    assert consumer.last is not None
    assert (consumer.last.finish, consumer.last.offset) == ("length", 2)
    assert len(world.book) == 0


def test_a_gap_ends_the_request_and_tells_the_engine() -> None:
    world, (consumer, other) = started(ask("a"), ask("b"))
    key = next(iter(world.consumers))
    world.act(world.book.chunks(1, [TokenChunk(request_id=key, offset=1, tokens=(1,))], 0.0))
    assert consumer.last is not None
    assert consumer.last.error_code == "engine_error"
    assert "skipped" in (consumer.last.error_message or "")
    assert list(world.engine) != []
    assert key not in world.engine
    assert other.last is None


def test_a_chunk_that_overlaps_is_cut() -> None:
    world, (consumer,) = started(ask("a"))
    key = next(iter(world.consumers))
    tokens, _ = undisturbed(consumer.request)
    world.act(world.book.chunks(1, [TokenChunk(request_id=key, offset=0, tokens=tuple(tokens[:3]))], 0.0))
    world.act(world.book.chunks(1, [TokenChunk(request_id=key, offset=1, tokens=tuple(tokens[1:5]))], 0.0))
    assert consumer.output == tokens[:5]


def test_a_refusal_reaches_the_caller_but_a_resumed_request_waits_for_room() -> None:
    world, (resumed,) = started(ask("a", 2))
    world.step()
    world.deliver()
    world.crash()
    world.refuse_next = QueueFull("full", retry_after_s=60.0)
    world.up()
    world.refuse_next = QueueFull("full")
    refused = world.consumers[world.open(ask("b"))]
    world.deliver()
    assert isinstance(refused.refusal, QueueFull)
    assert resumed.last is None
    world.now += 1.0
    world.act(world.book.tick(world.now))
    world.step()
    world.deliver()
    assert resumed.output == undisturbed(resumed.request)[0]


def test_an_engine_that_came_back_smaller_ends_the_resumed_request_with_its_reason() -> None:
    world, (consumer,) = started(ask("a"))
    world.crash()
    world.refuse_next = OutOfMemory("no pages")
    world.up()
    world.deliver()
    assert consumer.last is not None
    assert (consumer.last.finish, consumer.last.error_code) == ("error", "insufficient_memory")


def test_deadlines_run_on_through_crashes_and_expire_without_an_engine() -> None:
    world, (short, long) = started(ask("a", deadline_s=5.0), ask("b", deadline_s=50.0))
    world.now = 4.0
    world.crash()
    world.now = 6.0
    world.act(world.book.tick(world.now))
    assert short.last is not None
    assert short.last.error_code == "deadline_exceeded"
    world.up()
    ((request, _),) = world.engine.values()
    assert request.deadline_s == 44.0
    world.now = 51.5  # the engine has not ended it in time
    world.act(world.book.tick(world.now))
    assert long.last is not None
    assert long.last.error_code == "deadline_exceeded"
    assert not world.engine


def test_restarts_are_counted_and_times_span_all_lives() -> None:
    world, (consumer,) = started(ask("a", 2))
    world.now = 2.0
    world.step()
    world.deliver()
    world.crash()
    world.up()
    world.now = 7.0
    world.step()
    world.deliver()
    assert consumer.last is not None
    stats = consumer.last.stats
    assert stats is not None
    assert (stats.restarts, stats.prefill_s, stats.decode_s) == (1, 2.0, 5.0)
    assert (stats.cached_tokens, stats.restored_tokens) == (7, 5)
    assert (stats.prompt_tokens, stats.completion_tokens) == (1, 2)


def test_an_undisturbed_request_keeps_the_engines_own_statistics() -> None:
    world, (consumer,) = started(ask("a", 1))
    world.step()
    world.deliver()
    assert consumer.last is not None
    assert consumer.last.stats is not None
    assert (consumer.last.stats.queued_s, consumer.last.stats.restarts) == (0.5, 0)


def test_failing_everything_refuses_the_new_and_ends_the_old() -> None:
    world, (old,) = started(ask("a"))
    new = world.consumers[world.open(ask("b"))]
    world.act(world.book.fail_all(EngineUnavailable("gone"), 0.0))
    assert isinstance(new.refusal, EngineUnavailable)
    assert old.last is not None
    assert old.last.error_code == "engine_unavailable"
    assert len(world.book) == 0


def test_an_id_in_flight_is_refused() -> None:
    world, _ = started(ask("a"))
    with pytest.raises(InvalidRequest, match="in flight"):
        world.book.open(ask("a"), 0.0)
    assert "open=1" in repr(world.book)


def test_a_delivered_token_clears_the_strikes() -> None:
    world, (consumer,) = started(ask("a", 8))
    for _ in range(2 * LIMIT):
        world.step()
        world.deliver()
        world.crash()
        world.up()
        world.crash()
        world.up()
    world.step(8)
    world.deliver()
    assert consumer.output == undisturbed(consumer.request)[0]
    assert consumer.last is not None
    assert consumer.last.finish == "length"
