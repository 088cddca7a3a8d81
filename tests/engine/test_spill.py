"""Spilling is chosen by measured cost and stays within its bound."""

from collections.abc import Sequence

from edgewise.core.clock import FakeClock
from edgewise.engine.spill import SpillSpace


class SlowMover:
    """Takes time to move pages."""

    page_bytes = 100

    def __init__(self, clock: FakeClock, page_s: float) -> None:
        self.clock = clock
        self.page_s = page_s

    def export(self, pages: Sequence[int]) -> list[memoryview]:
        self.clock.advance(self.page_s * len(pages))
        return [memoryview(bytes(self.page_bytes)) for _ in pages]

    def restore(self, pages: Sequence[int], contents: Sequence[memoryview]) -> None:
        assert len(pages) == len(contents)
        self.clock.advance(self.page_s * len(pages))


def test_the_cheaper_way_is_taken() -> None:
    clock = FakeClock()
    space = SpillSpace(SlowMover(clock, 0.01), 10_000, now=clock.monotonic)
    assert space.reserve(10, 0.001)  # nothing is known yet: it is tried
    contents = space.export(range(10))
    space.restore(range(10), contents)
    space.free(10)
    assert abs(space.page_s - 0.02) < 1e-6
    assert space.reserve(10, 0.3)
    space.free(10)
    assert not space.reserve(10, 0.1)
    assert space.reserve(10, None)


def test_a_verdict_against_moving_is_tested_again_in_time() -> None:
    clock = FakeClock()
    space = SpillSpace(SlowMover(clock, 1.0), 10_000, now=clock.monotonic)
    space.restore([1], space.export([1]))
    refused = 0
    while not space.reserve(1, 0.1):
        refused += 1
    assert 10 <= refused <= 60


def test_no_more_is_promised_than_there_is() -> None:
    clock = FakeClock()
    space = SpillSpace(SlowMover(clock, 0.0), 1000, now=clock.monotonic)
    assert space.reserve(6, None)
    assert not space.reserve(5, None)
    assert space.reserve(4, None)
    assert space.stats().reserved_bytes == 1000
    space.free(6)
    assert space.reserve(5, None)


def test_without_a_mover_or_pages_nothing_is_spilled() -> None:
    assert not SpillSpace().reserve(1, None)
    clock = FakeClock()
    assert not SpillSpace(SlowMover(clock, 0.0), 1000, now=clock.monotonic).reserve(0, None)
