"""How much time pictures get beside texts, on a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.engine.share import Share, SliceCost


def paced(step_s: float, slice_s: float, steps: int = 2000) -> tuple[list[float], float]:
    """Intervals between tokens beside an engine that always wants to draw, and the share of time that it drew."""
    share, intervals, drawn = Share(), [], 0.0
    for _ in range(steps):
        share.stepped(step_s)
        allowed = share.pause(slice_s)
        slices = max(1, int(allowed / slice_s + 1e-9)) if allowed else 0
        intervals.append(step_s + slices * slice_s)
        drawn += slices * slice_s
    return intervals, drawn / sum(intervals)


@given(st.floats(0.001, 0.2), st.floats(0.0005, 0.5))
def test_95_of_100_intervals_are_at_most_one_and_a_half_times_as_long(step_s: float, slice_s: float) -> None:
    intervals, _ = paced(step_s, slice_s)
    assert sorted(intervals)[int(0.95 * len(intervals))] <= 1.5 * step_s


@given(st.floats(0.001, 0.2), st.floats(0.0005, 0.5))
def test_pictures_always_get_on_and_no_pause_is_longer_than_a_burst_or_a_slice(step_s: float, slice_s: float) -> None:
    intervals, drawn = paced(step_s, slice_s)
    assert drawn > 0
    assert max(intervals) - step_s <= max(0.1, 0.35 * step_s, slice_s) + 1e-9


def test_small_slices_get_a_quarter_of_the_time() -> None:
    assert paced(0.05, 0.004)[1] > 0.2


@given(st.floats(0.002, 0.2), st.floats(0.0005, 0.05))
def test_the_mean_keeps_the_bound_unless_one_slice_is_longer_than_half_the_steps(step_s: float, slice_s: float) -> None:
    intervals, _ = paced(step_s, slice_s)
    if slice_s <= 0.5 * 24 * step_s:
        assert sum(intervals) / len(intervals) <= 1.51 * step_s


def test_one_slow_step_does_not_make_a_long_pause() -> None:
    share = Share()
    for seconds in (0.01, 0.01, 5.0):
        share.stepped(seconds)
    assert share.pause(0.001) < 0.01


def test_the_cost_of_slices_follows_long_ones_at_once_and_forgets_slowly() -> None:
    cost = SliceCost()
    for _ in range(20):
        cost.observe(0.02)
    assert cost.seconds == pytest.approx(0.02, rel=0.01)
    cost.observe(0.001)
    assert cost.seconds > 0.018
