from __future__ import annotations

import pytest

from edgewise.engine.heartbeat import Limits, StepClock, Watchdog, resident_bytes
from edgewise.engine.messages import Heartbeat
from edgewise.engine.restart import Decision, RestartPolicy, RestartRules

LIMITS = Limits(silence_s=5.0, step_s=10.0, load_silence_s=20.0, load_s=60.0)


def beat(ago: float | None) -> Heartbeat:
    return Heartbeat(epoch=1, steps=0, step_started_ago=ago, rss_bytes=0)


def silent_until(watchdog: Watchdog, start: float) -> tuple[float, str]:
    """Ask once a second; when is the engine condemned, and why?"""
    now = start
    while (verdict := watchdog.verdict(now)) is None:
        now += 1.0
        assert now < start + 1000
    return now - start, verdict


def test_silence_is_judged_by_the_phase() -> None:
    loading = Watchdog(LIMITS, tick_s=1.0, now=0.0)
    assert silent_until(loading, 0.0) == (21.0, "no sign of life for 21.0 s (limit 20 s)")
    ready = Watchdog(LIMITS, tick_s=1.0, now=0.0)
    ready.ready()
    assert silent_until(ready, 0.0) == (6.0, "no sign of life for 6.0 s (limit 5 s)")


def test_any_message_is_a_sign_of_life() -> None:
    watchdog = Watchdog(LIMITS, tick_s=1.0, now=0.0)
    watchdog.ready()
    for now in range(100):
        watchdog.heard()
        assert watchdog.verdict(float(now)) is None


def test_loading_for_ever_is_condemned_though_it_beats() -> None:
    watchdog = Watchdog(LIMITS, tick_s=1.0, now=0.0)
    for now in range(61):
        watchdog.heard()
        assert watchdog.verdict(float(now)) is None
    watchdog.heard()
    assert watchdog.verdict(61.0) == "not ready after 61.0 s (limit 60 s)"


def test_one_step_may_be_long_but_not_endless() -> None:
    watchdog = Watchdog(LIMITS, tick_s=1.0, now=0.0)
    watchdog.ready()
    for ago in (None, 3.0, 9.9, None):
        watchdog.heard()
        watchdog.beat(beat(ago))
        assert watchdog.verdict(1.0) is None
    watchdog.beat(beat(10.5))
    assert watchdog.verdict(1.0) == "one step has been running for 10.5 s (limit 10 s)"


def test_a_stall_of_the_service_is_not_held_against_the_engine() -> None:
    watchdog = Watchdog(LIMITS, tick_s=1.0, now=0.0)
    watchdog.ready()
    assert watchdog.verdict(1.0) is None
    assert watchdog.verdict(1000.0) is None
    watchdog.heard()
    assert watchdog.verdict(1001.0) is None


def test_the_step_clock_tells_the_age_of_the_running_turn() -> None:
    now = [10.0]
    clock = StepClock(lambda: now[0])
    assert clock.beat(3).step_started_ago is None
    clock.begin()
    now[0] = 14.5
    running = clock.beat(3)
    assert (running.epoch, running.steps, running.step_started_ago) == (3, 0, 4.5)
    clock.end()
    idle = clock.beat(3)
    assert (idle.steps, idle.step_started_ago) == (1, None)
    assert 1_000_000 < resident_bytes() < 10**12


RULES = RestartRules(
    first_s=1.0, factor=2.0, longest_s=5.0, give_up_after=5, window_s=100.0, most_in_window=8, slow_s=40.0
)


def policy(number: float = 1.0) -> RestartPolicy:
    return RestartPolicy(RULES, random=lambda: number)


def test_pauses_grow_to_a_limit_and_then_the_engine_counts_as_failed() -> None:
    crashes = policy()
    decisions = [crashes.crashed(float(now), achieved=False) for now in range(5)]
    assert [decision.pause_s for decision in decisions] == [1.0, 2.0, 4.0, 5.0, 50.0]
    assert [decision.failed for decision in decisions] == [False] * 4 + [True]


def test_a_life_that_achieved_something_resets_the_pause() -> None:
    crashes = policy()
    for now in range(3):
        crashes.crashed(float(now), achieved=False)
    assert crashes.crashed(3.0, achieved=True) == Decision(1.0, failed=False)


def test_too_many_crashes_in_a_window_count_as_failure_though_each_life_achieved_something() -> None:
    crashes = policy()
    assert not any(crashes.crashed(float(now), achieved=True).failed for now in range(8))
    assert crashes.crashed(8.0, achieved=True).failed
    assert not crashes.crashed(200.0, achieved=True).failed


def test_a_hopeless_start_fails_at_once() -> None:
    assert policy().crashed(0.0, achieved=False, hopeless=True).failed


@pytest.mark.parametrize(("number", "pause"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_pauses_are_jittered(number: float, pause: float) -> None:
    assert policy(number).crashed(0.0, achieved=False).pause_s == pause
