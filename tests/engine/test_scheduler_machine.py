"""The scheduler as a state machine: classes, keys, spilling, a lower tier, cancels and passing time, over a small cache.

Sequences carry guesses at their next tokens, right ones and wrong ones; nothing may remain of the wrong ones.

After every step: no page is lost or held twice, nobody writes to a shared page (the harness checks), the cache holds what each
sequence has computed (likewise), promised host memory stays within its bound and covers what is there, and nobody is preempted
by what is not more urgent. Prompts have pictures, whose rows must be there when they are computed; some must be whole. In
the end everything finishes with its undisturbed answer and every page is back.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgewise.engine.pages import MOVED
from edgewise.engine.request import Priority
from edgewise.engine.sequence import Sequence
from tests.fakes.scheduling import PAGE, FakeGuesses, FakeMover, Harness, answer, picture, request

PAGES = 14
MAX_IDLE = 60  # steps in which the most urgent sequence may get nothing: the pacer's bursts are 24 apart


class SchedulerMachine(RuleBasedStateMachine):
    """Everything that may happen to a scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, Sequence] = {}
        self.expected: dict[str, list[int]] = {}
        self.count = 0
        self.idle: dict[str, int] = {}

    @initialize(
        spill=st.sampled_from([0, 4, 30]),
        tiered=st.booleans(),
        running=st.integers(1, 5),
        ageing=st.sampled_from([0.0, 5.0]),
        guesses=st.none() | st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    )
    def build(
        self, *, spill: int, tiered: bool, running: int, ageing: float, guesses: list[tuple[int, int]] | None
    ) -> None:
        self.harness = Harness(
            pages=PAGES,
            spill_pages=spill,
            tiered=tiered,
            max_running=running,
            ageing_s=ageing,
            step_tokens=16,
            guesses=None if guesses is None else FakeGuesses(guesses),
        )

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=30),
        media=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 12), st.integers(0, 2)), max_size=3),
        whole=st.booleans(),
        max_tokens=st.integers(1, 20),
        priority=st.sampled_from(list(Priority)),
        key=st.sampled_from("ab"),
        salt=st.sampled_from(["", "tenant"]),
    )
    def ask(
        self,
        prompt: list[int],
        media: list[tuple[int, int, int]],
        whole: bool,
        max_tokens: int,
        priority: Priority,
        key: str,
        salt: str,
    ) -> None:
        """`media`: tokens before each, its rows, and which one it is."""
        name = str(self.count)
        self.count += 1
        pictures, at = [], 0
        for before, count, which in media:
            at += before
            if at + count <= len(prompt):
                pictures.append(picture(at, count, which, whole=whole))
                prompt[at : at + count] = [7] * count
            at += count
        asked = request(name, prompt, max_tokens, priority=priority, key=key, salt=salt, media=pictures)
        self.live[name] = self.harness.scheduler.add(asked)
        self.expected[name] = answer(prompt, max_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.harness.scheduler.remove(self.live.pop(name))
        del self.expected[name]

    @precondition(lambda self: self.live)
    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self._step()

    @rule(seconds=st.floats(0.01, 4.0))
    def time_passes(self, seconds: float) -> None:
        self.harness.clock.advance(seconds)

    @rule(running=st.integers(0, 6))
    def limited(self, running: int) -> None:
        self.harness.scheduler.limit(running)

    @rule()
    def caches_are_dropped(self) -> None:
        self.harness.pool.drop_cached()

    def _step(self) -> None:
        scheduler = self.harness.scheduler
        before = list(scheduler.running)
        progress = {name: (s.computed, len(s.tokens)) for name, s in self.live.items()}
        plan = self.harness.step()
        served = [*scheduler.running, *(work.sequence for work in plan.work)]  # some have ended with this step
        pushed_out = [s for s in before if s in scheduler.waiting]
        for victim in pushed_out:
            assert any(s.order < victim.order for s in served), f"{victim} was preempted in vain"
        for name in [name for name in self.live if name in self.harness.done]:
            del self.live[name]
        self._check_progress(progress)

    def _check_progress(self, before: dict[str, tuple[int, int]]) -> None:
        """The most urgent sequence of all advances within a bounded number of steps."""
        if not self.live:
            return
        first = min(self.live.values(), key=lambda s: s.order)
        moved = (first.computed, len(first.tokens)) != before.get(first.id)
        self.idle = {first.id: 0 if moved else self.idle.get(first.id, 0) + 1}
        in_turn = first in self.harness.scheduler.running
        assert self.idle[first.id] <= MAX_IDLE or not in_turn, f"{first} does not move on"

    @invariant()
    def pages_add_up(self) -> None:
        if not hasattr(self, "harness"):
            return
        scheduler, pool = self.harness.scheduler, self.harness.pool
        held = [page for s in scheduler.running for page in s.pages]
        for page in range(PAGES):
            assert pool.users(page) == held.count(page)
        assert pool.in_use == len(set(held))
        assert all(not s.pages for s in scheduler.waiting)
        assert all(len(s.pages) <= -(-len(s.tokens) // PAGE) for s in scheduler.running)

    @invariant()
    def host_memory_is_bounded(self) -> None:
        if not hasattr(self, "harness"):
            return
        stats = self.harness.spill.stats()
        parked = [s.parked for s in self.harness.scheduler.waiting if s.parked is not None]
        assert stats.reserved_bytes <= stats.limit_bytes
        assert stats.reserved_bytes == sum(len(p.pages) for p in parked) * FakeMover.page_bytes
        for one in parked:
            assert set(one.contents) == {place for place, page in enumerate(one.pages) if page == MOVED}

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.drain()
        assert {name: self.harness.done[name] for name in self.expected} == self.expected
        assert self.harness.pool.in_use == 0
        self.harness.pool.drop_cached()
        assert self.harness.pool.free == PAGES


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
