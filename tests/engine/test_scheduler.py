"""The scheduler driven by random requests and a fake engine: nothing starves, nothing leaks, no answer depends on the load."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.clock import FakeClock
from edgewise.core.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from edgewise.engine.pacing import Pacer
from edgewise.engine.pages import PagePool
from edgewise.engine.request import GenerateRequest, Priority, SamplingParams
from edgewise.engine.scheduler import HOLD_S, Scheduler, StepPlan
from edgewise.engine.sequence import Sequence
from edgewise.engine.tiering import NoTiers

PAGE = 4


def request(
    name: str,
    prompt: Seq[int],
    max_tokens: int = 4,
    *,
    priority: Priority = Priority.INTERACTIVE,
    deadline_s: float | None = None,
    salt: str = "",
) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens)
    return GenerateRequest(
        id=name, prompt=tuple(prompt), sampling=sampling, priority=priority, deadline_s=deadline_s, salt=salt
    )


@dataclass
class Harness:
    """A scheduler and a fake network whose next token is a pure function of the tokens before it."""

    pages: int = 16
    max_running: int = 4
    max_waiting: int = 50
    max_context: int = 1000
    step_tokens: int = 8
    tiered: bool = False
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        # What a cache would hold: page -> its tokens. Proves that a shared or reused page has the right content.
        self.memory: dict[int, dict[int, int]] = {}
        self.tiers = FakeTiers(self.memory)
        tiers = self.tiers if self.tiered else None
        self.pool = PagePool(self.pages, tiers=tiers)
        self.pacer = Pacer(max_step_tokens=self.step_tokens, grain=2)
        self.scheduler = Scheduler(
            self.pool,
            page_tokens=PAGE,
            max_context=self.max_context,
            max_running=self.max_running,
            max_waiting=self.max_waiting,
            pacer=self.pacer,
            now=self.clock.monotonic,
            tiers=tiers,
        )
        self.done: dict[str, list[int]] = {}

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        for work in plan.work:
            sequence = work.sequence
            for position in range(work.start, work.start + work.count):
                page = sequence.pages[position // PAGE]
                self.memory.setdefault(page, {})[position % PAGE] = sequence.tokens[position]
        if plan.work:
            self.pacer.observe(decoding=plan.decoding, load=plan.load, seconds=0.001 + 0.0001 * plan.prefilling)
        for work in plan.work:
            self._check_cache(work.sequence, work.start + work.count)
            self.scheduler.commit(work)
            if work.sample:
                self._draw(work.sequence)
        return plan

    def _check_cache(self, sequence: Sequence, upto: int) -> None:
        held = [self.memory[sequence.pages[p // PAGE]][p % PAGE] for p in range(upto)]
        assert held == sequence.tokens[:upto]

    def _draw(self, sequence: Sequence) -> None:
        sequence.tokens.append(sum(sequence.tokens) * 31 % 101)
        if sequence.generated >= sequence.request.sampling.max_tokens:
            self.done[sequence.id] = sequence.tokens[len(sequence.request.prompt) :]
            self.scheduler.remove(sequence)

    def drain(self, limit: int = 5000) -> None:
        for _ in range(limit):
            if not self.scheduler.running and not self.scheduler.waiting:
                return
            self.step()
        raise AssertionError(f"not done after {limit} steps: {self.scheduler!r}")


def answer(prompt: Seq[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(sum(tokens) * 31 % 101)
    return tokens[len(prompt) :]


requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=30),
        st.integers(1, 20),
        st.sampled_from(list(Priority)),
        st.sampled_from(["", "tenant"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(requests, st.integers(13, 20))
def test_every_answer_is_that_of_an_idle_engine(
    jobs: list[tuple[list[int], int, Priority, str, int]], pages: int
) -> None:
    harness = Harness(pages=pages)
    for index, (prompt, max_tokens, priority, salt, pause) in enumerate(jobs):
        harness.scheduler.add(request(str(index), prompt, max_tokens, priority=priority, salt=salt))
        for _ in range(pause):
            harness.step()
    harness.drain()
    expected = {str(i): answer(prompt, max_tokens) for i, (prompt, max_tokens, *_rest) in enumerate(jobs)}
    assert harness.done == expected
    assert harness.pool.in_use == 0


@settings(max_examples=100, deadline=None)
@given(requests, st.lists(st.integers(0, 11), max_size=8))
def test_removing_requests_at_any_time_leaks_no_page(
    jobs: list[tuple[list[int], int, Priority, str, int]], victims: list[int]
) -> None:
    harness = Harness(pages=14)
    live: dict[str, Sequence] = {}
    for index, (prompt, max_tokens, priority, salt, pause) in enumerate(jobs):
        live[str(index)] = harness.scheduler.add(request(str(index), prompt, max_tokens, priority=priority, salt=salt))
        for _ in range(pause):
            harness.step()
        if index < len(victims) and str(victims[index]) in live and str(victims[index]) not in harness.done:
            harness.scheduler.remove(live.pop(str(victims[index])))
    harness.drain()
    assert harness.pool.in_use == 0
    for name, tokens in harness.done.items():
        prompt, max_tokens, *_rest = jobs[int(name)]
        assert tokens == answer(prompt, max_tokens)


def test_decoding_streams_come_before_prompts() -> None:
    harness = Harness(pages=64, step_tokens=8)
    harness.scheduler.add(request("a", [1], 60))
    for _ in range(2):
        harness.step()
    harness.scheduler.add(request("b", list(range(40)), 2))
    mixed = 0
    while "b" not in harness.done:
        plan = harness.step()
        assert (plan.work[0].sequence.id, plan.work[0].count) == ("a", 1)
        mixed += plan.prefilling > 0
    assert mixed >= 40 / 8
    assert "a" not in harness.done


def test_urgent_requests_are_admitted_first() -> None:
    harness = Harness(max_running=1)
    harness.scheduler.add(request("slow", [1], 2, priority=Priority.BULK))
    harness.scheduler.add(request("fast", [1], 2, priority=Priority.REALTIME))
    assert harness.step().work[0].sequence.id == "fast"


def test_a_known_prefix_is_not_computed_again() -> None:
    harness = Harness(pages=64, step_tokens=64)
    prompt = list(range(22))
    harness.scheduler.add(request("first", prompt, 1))
    harness.drain()
    second = harness.scheduler.add(request("second", prompt, 1))
    other = harness.scheduler.add(request("other", prompt, 1, salt="b"))
    harness.step()
    assert second.cached_tokens == 20
    assert other.cached_tokens == 0


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    harness = Harness(pages=64, step_tokens=64)
    prompt = list(range(20))
    harness.scheduler.add(request("first", prompt, 8))
    harness.drain()
    second = harness.scheduler.add(request("second", prompt, 1))
    plan = harness.step()
    assert second.cached_tokens == 16
    assert plan.work[0].count == 4


def test_a_full_queue_refuses_with_a_time() -> None:
    harness = Harness(max_running=1, max_waiting=2)
    for name in "abc":
        harness.scheduler.add(request(name, [1]))
    with pytest.raises(QueueFull, match="2 answers may wait beside 1") as refusal:
        harness.scheduler.add(request("d", [1]))
    assert refusal.value.retry_after_s is not None
    assert refusal.value.retry_after_s >= 1.0
    harness.drain()
    harness.scheduler.add(request("d", [1]))


def test_without_a_queue_the_batch_still_fills() -> None:
    harness = Harness(max_running=2, max_waiting=0)
    for name in "ab":
        harness.scheduler.add(request(name, [1]))
    with pytest.raises(QueueFull):
        harness.scheduler.add(request("c", [1]))
    harness.step()
    with pytest.raises(QueueFull):
        harness.scheduler.add(request("c", [1]))
    harness.drain()
    assert sorted(harness.done) == ["a", "b"]


def test_what_can_never_fit_is_refused_naming_both_numbers() -> None:
    harness = Harness(pages=4)
    with pytest.raises(ContextLengthExceeded, match=r"14 tokens.*18 in all.*16"):
        harness.scheduler.add(request("a", [1] * 14, 4))
    with pytest.raises(InvalidRequest, match="no tokens"):
        harness.scheduler.add(request("a", [], 4))
    harness.scheduler.add(request("a", [1] * 12, 4))
    with pytest.raises(InvalidRequest, match="in flight"):
        harness.scheduler.add(request("a", [1], 4))


def test_late_requests_leave_running_or_waiting() -> None:
    harness = Harness(max_running=1)
    harness.scheduler.add(request("runs", [1], 50, deadline_s=5.0))
    harness.scheduler.add(request("waits", [1], 50, deadline_s=2.0))
    harness.step()
    harness.clock.advance(3.0)
    assert [sequence.id for sequence in harness.step().expired] == ["waits"]
    harness.clock.advance(3.0)
    assert [sequence.id for sequence in harness.step().expired] == ["runs"]
    assert harness.pool.in_use == 0


def test_the_least_urgent_is_preempted_and_ends_with_the_same_answer() -> None:
    harness = Harness(pages=8, max_running=4)
    harness.scheduler.add(request("old", [1, 2, 3], 24))
    bulk = harness.scheduler.add(request("bulk", [4, 5, 6], 24, priority=Priority.BULK))
    harness.scheduler.add(request("new", [7, 8, 9], 24))
    harness.drain()
    assert bulk.preemptions >= 1
    assert harness.done["bulk"] == answer([4, 5, 6], 24)
    assert harness.done["old"] == answer([1, 2, 3], 24)


class FakeTiers(NoTiers):
    """Pages by name in a dictionary, as the harness' memory has them; tells what it was asked."""

    def __init__(self, memory: dict[int, dict[int, int]]) -> None:
        self.memory = memory
        self.kept: dict[bytes, dict[int, int]] = {}
        self.asked: list[bytes] = []
        self.settled_names: list[bytes] = []
        self.coming: set[bytes] = set()

    def lookup(self, chain: Seq[bytes]) -> int:  # type: ignore[override]
        return next((i for i, name in enumerate(chain) if name not in self.kept), len(chain))

    def prefetch(self, chain: Seq[bytes]) -> None:  # type: ignore[override]
        self.asked += chain

    def pending(self, chain: Seq[bytes]) -> bool:  # type: ignore[override]
        return bool(self.coming & set(chain))

    def load(self, chain: Seq[bytes], pages: Seq[int]) -> int:  # type: ignore[override]
        for page, name in zip(pages, chain, strict=True):
            self.memory[page] = dict(self.kept[name])
        return len(pages)

    def settled(self, page: int, name: bytes) -> None:  # type: ignore[override]
        self.settled_names.append(name)

    def evicted(self, page: int, name: bytes) -> None:  # type: ignore[override]
        self.kept[name] = dict(self.memory[page])


def test_pages_that_left_the_device_come_back_from_a_tier() -> None:
    harness = Harness(pages=64, step_tokens=64, tiered=True)
    prompt = list(range(22))
    harness.scheduler.add(request("first", prompt, 3))
    harness.drain()
    assert len(harness.tiers.settled_names) == 6
    harness.pool.drop_cached()
    assert len(harness.tiers.kept) == 6
    again = harness.scheduler.add(request("again", [*prompt, 1, 2, 3], 3))
    assert len(harness.tiers.asked) == 5 + 6
    harness.drain()
    assert (again.cached_tokens, again.restored_tokens) == (20, 20)
    assert harness.done["again"] == answer([*prompt, 1, 2, 3], 3)
    third = harness.scheduler.add(request("third", [*prompt, 1, 2, 3], 3))
    harness.drain()
    assert (third.cached_tokens, third.restored_tokens) == (24, 0)


def test_a_request_whose_pages_are_coming_waits_but_not_for_long() -> None:
    harness = Harness(pages=64, step_tokens=64, tiered=True)
    held = harness.scheduler.add(request("held", list(range(9)), 3))
    harness.tiers.coming.update(harness.tiers.asked)
    harness.scheduler.add(request("other", [1] * 9, 3))
    for _ in range(5):
        assert "held" not in [work.sequence.id for work in harness.step().work]
    assert "other" in harness.done
    harness.clock.advance(HOLD_S)
    harness.drain()
    assert held.cached_tokens == 0
    assert harness.done["held"] == answer(list(range(9)), 3)
