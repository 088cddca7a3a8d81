from __future__ import annotations

import asyncio

import pytest

from edgewise.core.clock import EARLIEST_PLAUSIBLE, Clock, FakeClock, SystemClock, parse_duration, plausible


async def test_system_clock_runs() -> None:
    clock: Clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    assert plausible(clock.time())


async def test_fake_sleepers_wake_in_order_of_their_deadlines() -> None:
    clock = FakeClock()
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    tasks = [asyncio.create_task(sleeper(*case)) for case in (("late", 3.0), ("early", 1.0), ("now", 0.0))]
    for _ in range(3):
        await asyncio.sleep(0)
    assert woken == ["now"]
    assert repr(clock) == "FakeClock(elapsed=0.0, sleepers=2)"
    clock.advance(0.5)
    await asyncio.sleep(0)
    assert woken == ["now"]
    clock.advance(5)
    await asyncio.gather(*tasks)
    assert woken == ["now", "early", "late"]
    assert clock.monotonic() == 5.5
    assert clock.time() == FakeClock().time() + 5.5


async def test_a_cancelled_sleeper_is_skipped() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    clock.advance(2)
    assert repr(clock) == "FakeClock(elapsed=2.0, sleepers=0)"


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1)


def test_plausible() -> None:
    floor = EARLIEST_PLAUSIBLE.timestamp()
    assert plausible(floor)
    assert not plausible(floor - 1)
    assert not plausible(0)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90d", 7776000), ("1.5h", 5400), (" 30M ", 1800), ("45s", 45), ("2w", 1209600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "1 d", "1y", "infd", "1d2h"])
def test_texts_that_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="for instance 90d"):
        parse_duration(text)
