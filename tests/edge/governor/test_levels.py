"""Levels as a state machine: up at once, down slowly, and nothing flickers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgewise.edge.governor.levels import DWELL_S, EASE_C, LEFT_C, UNKNOWN_S, Level, Levels
from edgewise.edge.hardware.protocol import Sensed

LIMIT = 85.0
temperatures = st.none() | st.floats(20, 110)
sensed = st.builds(
    Sensed,
    temperature_c=temperatures,
    margin_c=st.none() | st.floats(-10, 60),
    throttled=st.sampled_from([None, False, True]),
)
savings = st.sampled_from([None, "the battery is at 5 %"])


def asked(reading: Sensed, saving: str | None) -> Level:
    """What a reading asks for at least, said another way than the code does."""
    lefts = [reading.margin_c] if reading.margin_c is not None else []
    lefts += [LIMIT - reading.temperature_c] if reading.temperature_c is not None else []
    left = min(lefts, default=1000.0)
    by_heat = sum(left <= begins for begins in LEFT_C.values())
    return Level(max(by_heat, 2 if reading.throttled else 0, 1 if saving else 0))


@given(st.lists(st.tuples(sensed, savings, st.floats(0.1, 60)), max_size=60))
def test_never_less_than_asked_and_down_one_level_at_a_time(steps: list[tuple[Sensed, str | None, float]]) -> None:
    levels, now, less_since = Levels(LIMIT), 0.0, 0.0
    for reading, saving, seconds in steps:
        now += seconds
        before = levels.level
        changed = levels.observe(reading, now, saving=saving)
        assert changed == (levels.level != before)
        wanted = asked(reading, saving)
        assert levels.level >= wanted
        if levels.level > before:
            assert levels.level == wanted
        if levels.level < before:
            assert before - levels.level == 1
            assert now - less_since >= DWELL_S
        if wanted >= before or changed:
            less_since = now
        assert levels.reason


@given(st.lists(st.tuples(sensed, st.floats(0.1, 60)), max_size=30))
def test_who_stays_cool_is_normal_in_the_end(steps: list[tuple[Sensed, float]]) -> None:
    levels, now = Levels(LIMIT), 0.0
    for reading, seconds in steps:
        now += seconds
        levels.observe(reading, now)
    for _ in range(4):
        now += DWELL_S + 1.0
        levels.observe(Sensed(temperature_c=40.0, throttled=False), now)
    assert levels.level == Level.NORMAL


@given(st.sampled_from(list(LEFT_C)), st.lists(st.floats(0.0, EASE_C - 0.01), min_size=1, max_size=50))
def test_a_temperature_around_a_threshold_changes_the_level_once(level: Level, wobble: list[float]) -> None:
    levels, changes = Levels(LIMIT), 0
    for second, degrees in enumerate([0.0, *wobble]):
        changes += levels.observe(Sensed(temperature_c=LIMIT - LEFT_C[level] - degrees), 30.0 * second)
    assert (levels.level, changes) == (level, 1)


def test_a_sensor_that_is_lost_while_it_is_hot_keeps_the_level_for_a_while() -> None:
    levels = Levels(LIMIT)
    levels.observe(Sensed(temperature_c=90.0), 0.0)
    for now in range(1, int(UNKNOWN_S) + 1):
        assert not levels.observe(Sensed(), float(now))
    assert levels.level == Level.CRITICAL
    for now in range(int(UNKNOWN_S) + 1, int(UNKNOWN_S + 4 * DWELL_S)):
        levels.observe(Sensed(), float(now))
    assert (levels.level, levels.reason) == (Level.NORMAL, "no temperature is known")


def test_the_reason_names_the_nearest_limit() -> None:
    levels = Levels(LIMIT)
    levels.observe(Sensed(temperature_c=70.0, margin_c=2.5), 0.0)
    assert (levels.level, levels.reason) == (Level.HOT, "2.5 below the point where the hardware slows itself down")
    levels.observe(Sensed(temperature_c=86.0, margin_c=2.5), 1.0)
    assert (levels.level, levels.reason) == (Level.CRITICAL, "86.0 C, 1.0 above the limit of 85 C")
    levels = Levels(LIMIT)
    levels.observe(Sensed(temperature_c=50.0, throttled=True, reasons=("over-current",)), 0.0)
    assert (levels.level, levels.reason) == (Level.HOT, "the hardware slows itself down (over-current)")
