"""Routing and resuming without processes: a state machine against a model engine."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgewise.core.errors import OutOfMemory, QueueFull
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from tests.fakes.book import World, ask, undisturbed


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
