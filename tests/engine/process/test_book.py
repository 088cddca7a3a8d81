"""Routing and resuming without processes: a state machine against a model engine, then the rules one by one."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgewise.core.errors import EdgewiseError, EngineUnavailable, InvalidRequest, OutOfMemory, QueueFull
from edgewise.engine.book import Accept, Action, Deliver, Refuse, RequestBook, Send
from edgewise.engine.messages import Cancel, Submit
from edgewise.engine.request import FinishReason, GenerateRequest, RequestStats, SamplingParams, TokenChunk

CONTEXT = 1000
LIMIT = 3


def token(request: GenerateRequest, position: int) -> int:
    key = f"{request.prompt} {request.sampling.seed} {position}".encode()
    return hashlib.blake2b(key, digest_size=1).digest()[0] % 32


def end(request: GenerateRequest, output: list[int]) -> FinishReason | None:
    if output and output[-1] in request.sampling.stop_token_ids:
        return "stop"
    return "length" if len(output) >= request.sampling.max_tokens else None


def undisturbed(request: GenerateRequest) -> tuple[list[int], FinishReason]:
    output = list(request.output)
    while (finish := end(request, output)) is None:
        output.append(token(request, len(output)))
    return output, finish


def ask(name: str, max_tokens: int = 10, *, deadline_s: float | None = None, **sampling: object) -> GenerateRequest:
    prompt = tuple(name.encode())
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return GenerateRequest(id=name, prompt=prompt, sampling=params, deadline_s=deadline_s)


@dataclass
class Consumer:
    """What one caller has seen."""

    request: GenerateRequest
    accepted: bool = False
    refusal: EdgewiseError | None = None
    output: list[int] = field(default_factory=list)
    last: TokenChunk | None = None
    left: bool = False

    @property
    def done(self) -> bool:
        return self.left or self.refusal is not None or self.last is not None

    def take(self, chunk: TokenChunk) -> None:
        assert self.accepted
        assert not self.done
        assert chunk.request_id == self.request.id
        assert chunk.offset == len(self.request.output) + len(self.output)
        assert chunk.tokens or chunk.finish
        assert (chunk.stats is not None) == (chunk.finish is not None)
        self.output += chunk.tokens
        if chunk.finish is not None:
            self.last = chunk


class World:
    """A book, a model engine that obeys its protocol, the wire between them, and the consumers."""

    def __init__(self) -> None:
        self.book = RequestBook(strike_limit=LIMIT)
        self.now = 0.0
        self.epoch = 0
        self.engine: dict[str, tuple[GenerateRequest, list[int]]] = {}
        self.wire: deque[TokenChunk | str | tuple[str, EdgewiseError]] = deque()
        self.consumers: dict[str, Consumer] = {}
        self.refuse_next: EdgewiseError | None = None
        self.sent = 0

    def act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send(Submit() as message):
                    self.receive(message.request())
                case Send(Cancel(id=key)):
                    self.engine.pop(key, None)
                case Accept(key):
                    assert not self.consumers[key].accepted
                    self.consumers[key].accepted = True
                case Refuse(key, error):
                    assert not self.consumers[key].accepted
                    self.consumers[key].refusal = error
                case Deliver(key, chunk):
                    self.consumers[key].take(chunk)
                case _:
                    raise AssertionError(action)

    def receive(self, request: GenerateRequest) -> None:
        assert self.book.epoch == self.epoch
        assert request.id not in self.engine
        assert end(request, list(request.output)) is None, "nothing is left to generate"
        self.sent += 1
        if self.refuse_next is not None:
            self.wire.append((request.id, self.refuse_next))
            self.refuse_next = None
            return
        self.engine[request.id] = (request, list(request.output))
        self.wire.append(request.id)

    def open(self, request: GenerateRequest) -> str:
        key, actions = self.book.open(request, self.now)
        self.consumers[key] = Consumer(request)
        self.act(actions)
        return key

    def up(self) -> None:
        self.epoch += 1
        self.act(self.book.up(self.epoch, CONTEXT, self.now))

    def step(self, burst: int = 1) -> None:
        for key, (request, output) in list(self.engine.items()):
            offset = len(output)
            while len(output) < offset + burst and end(request, output) is None:
                output.append(token(request, len(output)))
            finish = end(request, output)
            self.wire.append(made(key, offset, output, finish))
            if finish is not None:
                del self.engine[key]

    def deliver(self, count: int = 10**6) -> None:
        for _ in range(min(count, len(self.wire))):
            message = self.wire.popleft()
            if isinstance(message, TokenChunk):
                self.act(self.book.chunks(self.epoch, [message], self.now))
            elif isinstance(message, str):
                self.act(self.book.accepted(self.epoch, message))
            else:
                self.act(self.book.refused(self.epoch, *message, self.now))

    def crash(self, arrived: int = 0) -> None:
        """The engine dies; of what was on the wire, the first messages still arrive."""
        self.deliver(arrived)
        self.wire.clear()
        self.engine.clear()
        self.act(self.book.down(self.now))


def made(key: str, offset: int, output: list[int], finish: FinishReason | None) -> TokenChunk:
    stats = RequestStats(
        prompt_tokens=1, cached_tokens=7, completion_tokens=len(output), queued_s=0.5, prefill_s=0.0, decode_s=0.0
    )
    return TokenChunk(
        request_id=key,
        offset=offset,
        tokens=tuple(output[offset:]),
        finish=finish,
        stats=None if finish is None else stats,
    )


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.serial = 0

    @property
    def is_up(self) -> bool:
        return self.world.book.epoch is not None

    @rule(max_tokens=st.integers(1, 6), stop=st.booleans(), reuse=st.booleans(), output=st.integers(0, 2))
    def open(self, max_tokens: int, stop: bool, reuse: bool, output: int) -> None:
        free = [c.request.id for c in self.world.consumers.values() if c.done]
        self.serial += 1
        name = free[0] if reuse and free and not self.in_flight(free[0]) else f"r{self.serial}"
        sampling = SamplingParams(max_tokens=max_tokens, seed=self.serial, stop_token_ids=(1, 2, 3) if stop else ())
        request = GenerateRequest(id=name, prompt=(self.serial,), sampling=sampling)
        tokens, _ = undisturbed(request)
        self.world.open(
            GenerateRequest(id=name, prompt=(self.serial,), sampling=sampling, output=tuple(tokens[:output]))
        )

    def in_flight(self, name: str) -> bool:
        return any(c.request.id == name and not c.done for c in self.world.consumers.values())

    @precondition(lambda self: not self.is_up)
    @rule()
    def up(self) -> None:
        self.world.up()

    @precondition(lambda self: self.is_up)
    @rule(burst=st.integers(1, 3))
    def step(self, burst: int) -> None:
        self.world.step(burst)

    @precondition(lambda self: self.world.wire)
    @rule(count=st.integers(1, 5))
    def deliver(self, count: int) -> None:
        self.world.deliver(count)

    @precondition(lambda self: self.is_up)
    @rule(arrived=st.integers(0, 5))
    def crash(self, arrived: int) -> None:
        self.world.crash(arrived)

    @rule(back=st.integers(1, 3), offset=st.integers(0, 3), data=st.data())
    def stale(self, back: int, offset: int, data: st.DataObject) -> None:
        """A message of an earlier life, or about a request that is gone."""
        if self.world.consumers:
            key = data.draw(st.sampled_from(sorted(self.world.consumers)))
            chunk = TokenChunk(request_id=key, offset=offset, tokens=(99,))
            assert self.world.book.chunks(self.world.epoch - back, [chunk], self.world.now) == []
            assert self.world.book.accepted(self.world.epoch - back, key) == []

    @precondition(lambda self: self.is_up)
    @rule(data=st.data())
    def double(self, data: st.DataObject) -> None:
        """Tokens that were delivered come once more in the same life."""
        present = [
            key for key, consumer in self.world.consumers.items() if key in self.world.engine and consumer.output
        ]
        if present:
            key = data.draw(st.sampled_from(sorted(present)))
            consumer = self.world.consumers[key]
            again = TokenChunk(
                request_id=key, offset=len(consumer.request.output), tokens=tuple(consumer.output)
            )  # fmt: skip
            assert self.world.book.chunks(self.world.epoch, [again], self.world.now) == []

    @rule(retryable=st.booleans())
    def refuse_next(self, retryable: bool) -> None:
        self.world.refuse_next = QueueFull("full", retry_after_s=0.2) if retryable else OutOfMemory("no pages")

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        present = [key for key, consumer in self.world.consumers.items() if not consumer.done]
        if present:
            key = data.draw(st.sampled_from(sorted(present)))
            self.world.consumers[key].left = True
            self.world.act(self.world.book.cancel(key, self.world.now))
            assert key not in self.world.engine

    @rule(seconds=st.floats(0, 1))
    def tick(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.act(self.world.book.tick(self.world.now))

    @invariant()
    def everything_delivered_is_right(self) -> None:
        for consumer in self.world.consumers.values():
            tokens, finish = undisturbed(consumer.request)
            given_before = len(consumer.request.output)
            assert consumer.output == tokens[given_before : given_before + len(consumer.output)]
            if consumer.last is not None and consumer.last.finish != "error":
                assert consumer.last.finish == finish
                assert len(consumer.output) + given_before == len(tokens)
                assert consumer.last.stats is not None
                assert consumer.last.stats.completion_tokens == len(tokens)

    @invariant()
    def the_book_holds_just_what_is_open(self) -> None:
        assert len(self.world.book) == sum(not consumer.done for consumer in self.world.consumers.values())

    def teardown(self) -> None:
        """Left alone, every request comes to its end."""
        if not self.is_up:
            self.world.up()
        self.world.refuse_next = None
        for _ in range(100):
            self.world.now += 1.0
            self.world.act(self.world.book.tick(self.world.now))
            self.world.step()
            self.world.deliver()
        assert len(self.world.book) == 0
        assert all(consumer.done for consumer in self.world.consumers.values())
        self.everything_delivered_is_right()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(poisons=st.lists(st.booleans(), min_size=1, max_size=8), silent=st.booleans())
@settings(max_examples=100, deadline=None)
def test_poison_fails_and_bad_company_survives(poisons: list[bool], silent: bool) -> None:
    """A poison kills the engine in its first step, before (silent) or after the others got a token."""
    world = World()
    keys = [world.open(ask(f"r{number}", 3)) for number in range(len(poisons))]
    poisoned = {key for key, poison in zip(keys, poisons, strict=True) if poison}
    lives = 0
    while len(world.book):
        lives += 1
        assert lives < 50
        world.up()
        while len(world.book):
            world.deliver()
            if poisoned & set(world.engine):
                if not silent:
                    for key in poisoned:
                        world.engine.pop(key, None)
                    world.step()
                world.crash(10**6 if not silent else 0)
                break
            world.step()
            world.deliver()
    for key in keys:
        consumer = world.consumers[key]
        if key in poisoned:
            assert consumer.last is not None
            assert (consumer.last.finish, consumer.last.error_code) == ("error", "engine_error")
        else:
            assert consumer.output == undisturbed(consumer.request)[0]


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
    assert (stats.restarts, stats.prefill_s, stats.decode_s, stats.cached_tokens) == (1, 2.0, 5.0, 7)
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
