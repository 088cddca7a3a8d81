"""Callers of an encoder share its time by key: counted in batches and on a clock that only computing moves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.errors import QueueFull
from edgewise.core.priority import Priority
from edgewise.engine.encoders.engine import EncoderCore, Result
from edgewise.engine.encoders.request import EncodeRequest
from edgewise.engine.ledger import Ledger
from tests.engine.encoders.test_engine import INFO, Clock


class Working:
    """A named double: every byte of an input takes a second, together with others as alone."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.batches: list[list[bytes]] = []

    def check(self, content: bytes, options: Mapping[str, Any]) -> bytes:
        del options
        return content

    def weigh(self, one: bytes) -> float:
        return float(len(one))

    def compute(self, inputs: Sequence[bytes]) -> list[Result]:
        self.batches.append(list(inputs))
        self.clock.now += sum(map(len, inputs))
        return [({}, b"") for _ in inputs]


class Shared:
    """A core, and what each key has had of it."""

    def __init__(self, **limits: int) -> None:
        self.clock = Clock()
        self.encoder = Working(self.clock)
        ledger = Ledger(1 << 20, lambda: 1 << 20)
        options: dict[str, Any] = {"max_batch": 2, "max_waiting": 1000, **limits}
        self.core = EncoderCore(INFO, self.encoder, ledger, now=self.clock, sleep=self._sleep, **options)
        self.had: defaultdict[str, float] = defaultdict(float)
        self.count = 0

    def _sleep(self, seconds: float) -> None:
        self.clock.now += seconds

    def add(self, key: str, size: int = 1, times: int = 1, **fields: Any) -> None:
        for _ in range(times):
            self.count += 1
            self.core.add(EncodeRequest(id=f"{key}-{self.count}", content=key.encode() * size, key=key, **fields))

    def batch(self) -> list[str]:
        """The keys of the next batch."""
        while True:
            chunks = self.core.step()
            if chunks:
                break
        for chunk in chunks:
            assert chunk.stats is not None
            self.had[chunk.request_id[0]] += chunk.stats.device_s
        return [chunk.request_id[0] for chunk in chunks]


def test_a_caller_who_asks_one_by_one_is_in_the_next_batch_beside_a_flood() -> None:
    shared = Shared()
    shared.add("a", times=500)
    for _ in range(20):
        shared.batch()
    for _ in range(20):
        shared.add("b")
        assert "b" in shared.batch()


def test_the_share_of_time_holds_where_one_key_asks_for_more_at_a_time() -> None:
    shared = Shared()
    shared.add("a", size=10, times=200)
    shared.add("b", size=1, times=600)
    for _ in range(100):
        shared.batch()
    assert shared.had["b"] == pytest.approx(shared.had["a"], abs=2 * 10 * 2)
    answered = Counter(one[:1] for batch in shared.encoder.batches for one in batch)
    assert answered[b"b"] > 5 * answered[b"a"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=40, max_size=80),
    st.integers(1, 4),
)
def test_what_busy_keys_have_had_never_differs_by_more_than_a_bound(jobs: list[tuple[str, int]], batch: int) -> None:
    shared = Shared(max_batch=batch)
    left: Counter[str] = Counter()
    for key, size in jobs:
        shared.add(key, size=size)
        left[key] += 1
    while True:
        left.subtract(shared.batch())
        busy = [key for key in left if left[key] > 0]
        if len(busy) < len([key for key in left if key in shared.had or left[key]]) or len(busy) < 2:
            break  # a key that has nothing left falls behind
        assert max(shared.had[key] for key in busy) - min(shared.had[key] for key in busy) <= 2 * 9 * batch


def test_more_urgent_classes_come_first_whatever_their_keys_have_had() -> None:
    shared = Shared(max_batch=1)
    shared.add("a", size=9, times=3, priority=Priority.REALTIME)
    shared.add("b", priority=Priority.BACKGROUND)
    assert [shared.batch()[0] for _ in range(4)] == ["a", "a", "a", "b"]


def test_a_flood_that_fills_the_queue_leaves_a_place_for_others() -> None:
    shared = Shared(max_waiting=8)
    shared.add("a", times=8)
    with pytest.raises(QueueFull, match="8 requests wait for 'm' already, 8 of this key"):
        shared.add("a")
    shared.add("b", times=4)
    with pytest.raises(QueueFull, match="4 of this key"):
        shared.add("b")
    assert shared.batch() == ["a", "b"]


def test_time_had_in_other_engines_counts_and_is_made_up_for() -> None:
    """Who has had 6 seconds more elsewhere comes again when the other has had as much."""
    shared = Shared(max_batch=1)
    shared.add("a", times=20, lead_s=6.0)
    shared.add("b", times=20)
    first = [shared.batch()[0] for _ in range(12)]
    assert first[:6] == ["b"] * 6
    assert abs(Counter(first[6:])["a"] - 3) <= 1


def test_time_had_here_is_not_counted_twice() -> None:
    shared = Shared(max_batch=1)
    shared.add("a", size=6)
    shared.add("b")
    assert shared.batch() == ["a"]
    shared.add("a", times=20, lead_s=6.0)  # all of it had here, as the counters know
    shared.add("b", times=20, lead_s=0.0)
    order = [shared.batch()[0] for _ in range(12)]
    assert order[:5] == ["b"] * 5
    assert order[5:].count("a") >= 2


def test_an_input_that_takes_long_to_read_is_its_callers_time() -> None:
    shared = Shared()

    class Slow(Working):
        def check(self, content: bytes, options: Mapping[str, Any]) -> bytes:
            self.clock.now += 5.0
            return super().check(content, options)

    shared.core._encoder = Slow(shared.clock)
    shared.add("a")
    shared.batch()
    assert shared.had["a"] == 6.0
    assert shared.core.stats().encoder_seconds == 6.0
