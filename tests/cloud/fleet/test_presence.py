"""Presence: a pure state machine under every order of messages, and its rows, events and times on both databases."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.fleet import presence
from edgewise.cloud.fleet.presence import PRESENT, Presence
from edgewise.wire import topics
from edgewise.wire.fleet import Live, ModelState, Sync
from tests.cloud.fleet.bench import VIEWER, Bench

ONLINE, DRAINING, WILL = Live(state="online"), Live(state="draining"), Live(state="offline", reason="will")

# --- the state machine ----------------------------------------------------------------------------------------------------------


def test_a_will_of_an_older_session_changes_nothing() -> None:
    """The device is back before its broker has noticed that it was gone."""
    now = presence.said(Presence(), ONLINE, 2, 1, 10.0)
    assert presence.said(now, WILL, 1, 0, 11.0) == now


def test_a_will_counts_though_it_was_sealed_before_the_session_began() -> None:
    gone = presence.said(presence.said(Presence(), ONLINE, 1, 5, 10.0), WILL, 1, 1, 20.0)
    assert gone.state == "online"  # for as long as the grace
    assert presence.passed(gone, 24.9, 5.0).state == "online"
    assert presence.passed(gone, 25.0, 5.0).state == "offline"


def test_one_that_is_back_within_the_grace_was_never_offline() -> None:
    gone = presence.said(presence.said(Presence(), ONLINE, 1, 1, 10.0), WILL, 1, 1, 20.0)
    back = presence.said(gone, ONLINE, 2, 1, 22.0)
    assert presence.passed(back, 1000.0, 5.0) == back
    assert (back.state, back.since) == ("online", 10.0)


def test_an_announced_absence_is_expected_until_its_time_is_over() -> None:
    live = Live(state="offline", reason="restart", expected_s=60)
    away = presence.said(presence.said(Presence(), ONLINE, 1, 1, 10.0), live, 1, 2, 20.0)
    assert (away.state, away.reason) == ("offline-expected", "restart")
    assert presence.passed(away, 79.0, 5.0) == away
    late = presence.passed(away, 80.0, 5.0)
    assert (late.state, late.reason) == ("offline", "not back in time: restart")


def test_a_repeat_of_online_after_the_end_of_its_session_does_not_bring_it_back() -> None:
    gone = presence.said(presence.said(Presence(), ONLINE, 1, 1, 10.0), WILL, 1, 0, 20.0)
    assert presence.said(gone, ONLINE, 1, 1, 21.0) == gone
    assert presence.heard(gone, 1, 21.0) == gone


def test_a_device_that_was_believed_lost_and_speaks_in_the_same_session_is_there() -> None:
    lost = presence.lost(presence.said(Presence(), ONLINE, 3, 1, 10.0), 200.0)
    assert lost.state == "offline"
    assert presence.heard(lost, 3, 201.0).state == "online"


def test_degraded_and_draining() -> None:
    ill = presence.well(presence.said(Presence(), ONLINE, 1, 1, 1.0), "it throttles", 2.0)
    assert (ill.state, ill.reason) == ("degraded", "it throttles")
    draining = presence.said(ill, DRAINING, 1, 2, 3.0)
    assert draining.state == "draining"
    assert presence.well(draining, "", 4.0).state == "draining"
    assert presence.said(draining, ONLINE, 1, 1, 5.0).state == "draining"  # an older message, late
    assert presence.said(draining, ONLINE, 1, 3, 5.0).state == "degraded"
    assert presence.well(presence.said(draining, ONLINE, 1, 3, 5.0), "", 6.0).state == "online"


sessions = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["online", "draining"]), max_size=3),
        st.sampled_from(["will", "clean", "alive"]),
    ),
    min_size=1,
    max_size=4,
)


@given(told=sessions, data=st.data())
def test_whatever_the_order_of_delivery_the_latest_session_decides(
    told: list[tuple[list[str], str]], data: st.DataObject
) -> None:
    """Messages of sessions arrive in any order, some twice: the state is that of the last message of the last session."""
    messages: list[tuple[int, int, Live]] = []
    for ep, (states, end) in enumerate(told, 1):
        lives = [Live(state="online"), *(Live.model_validate({"state": state}) for state in states)]
        messages += [(ep, seq, live) for seq, live in enumerate(lives, 1)]
        if end == "will":
            messages.append((ep, 1, WILL))
        elif end == "clean":
            messages.append((ep, len(lives) + 1, Live(state="offline", reason="stopped")))
    arriving = data.draw(st.permutations(messages + data.draw(st.lists(st.sampled_from(messages), max_size=4))))
    state, clock = Presence(), itertools.count(1.0)
    for ep, seq, live in arriving:
        state = presence.said(state, live, ep, seq, next(clock))
    state = presence.passed(state, 1e6, 5.0)
    states, end = told[-1]
    assert state.ep == len(told)
    assert state.state == ("offline" if end != "alive" else states[-1] if states else "online")


# --- rows -----------------------------------------------------------------------------------------------------------------------


async def state(bench: Bench, uid: str = "d1") -> str:
    return (await bench.registry.device(VIEWER, uid)).state


async def test_from_never_seen_to_online_to_offline_with_events(bench: Bench) -> None:
    await bench.device(online=False)
    assert await state(bench) == "never-seen"
    await bench.online()
    assert await state(bench) == "online"
    await bench.say(topics.live("d1"), WILL, retain=True, seq=0)
    assert await state(bench) == "online"
    await bench.step(4.9)
    assert await state(bench) == "online"
    await bench.step(0.2)
    assert await state(bench) == "offline"
    kinds = [event.kind for event in (await bench.registry.events(VIEWER, "d1")).items]
    assert kinds == ["device.offline", "device.online"]


async def test_a_retained_state_proves_no_presence_by_itself(bench: Bench) -> None:
    """What the broker kept is the last word of the device, but not that it was heard of now."""
    await bench.device(online=False)
    await bench.say(topics.live("d1"), ONLINE, retain=True)
    detail = await bench.registry.device(VIEWER, "d1")
    assert (detail.state, detail.seen_at) == ("online", None)


async def test_after_a_restart_of_the_fleet_silent_devices_are_offline_and_others_stay(bench: Bench) -> None:
    for uid in ("silent", "telling", "kept"):
        await bench.device(uid)
        await bench.born(uid)
    bench.attendance.began()
    await bench.say(topics.sync("telling"), Sync())
    await bench.say(topics.live("kept"), ONLINE, retain=True)  # the broker says it anew: it would know a will
    await bench.say(
        topics.birth("silent"), {"version": "1.0.0", "boot": "b", "started": "s"}, retain=True
    )  # proves nothing
    await bench.step(149.0)
    assert [await state(bench, uid) for uid in ("silent", "telling", "kept")] == ["online"] * 3
    await bench.step(2.0)
    assert [await state(bench, uid) for uid in ("silent", "telling", "kept")] == ["offline", "online", "online"]
    await bench.say(topics.sync("silent"), Sync())
    assert await state(bench, "silent") == "online"


async def test_what_a_device_says_of_itself_is_kept_by_the_newest_birth(bench: Bench) -> None:
    await bench.device()
    held = [ModelState(name="SmolLM2-135M", digest="sha256:aa", loaded=True)]
    await bench.born(version="1.2.0", boot="b1", name="Line 4", models=held, hardware={"family": "orin"})
    await bench.say(
        topics.birth("d1"), {"version": "0.9", "boot": "b0", "started": "s"}, ep=0, seq=9
    )  # an old one, late
    detail = await bench.registry.device(VIEWER, "d1")
    assert (detail.version, detail.name, detail.models[0]["name"]) == ("1.2.0", "Line 4", "SmolLM2-135M")
    assert detail.birth["hardware"] == {"family": "orin"}
    await bench.born(version="1.3.0", boot="b2")
    events = {event.kind for event in (await bench.registry.events(VIEWER, "d1")).items}
    assert {"device.version", "device.booted"} <= events
    assert (await bench.registry.device(VIEWER, "d1")).models == ()


async def test_a_model_that_failed_makes_a_device_degraded_until_it_is_well(bench: Bench) -> None:
    await bench.device()
    await bench.born(models=[ModelState(name="m", state="failed", reason="no memory")])
    detail = await bench.registry.device(VIEWER, "d1")
    assert (detail.state, detail.state_reason) == ("degraded", "the model m failed: no memory")
    await bench.born(models=[ModelState(name="m")])
    assert await state(bench) == "online"


@pytest.mark.parametrize("years", [-5, 5])
async def test_the_clock_of_a_device_is_never_believed(bench: Bench, years: int) -> None:
    await bench.device(online=False)
    wrong = bench.clock.time() + years * 365 * 86_400
    await bench.say(topics.live("d1"), ONLINE, ts=wrong)
    await bench.say(
        topics.telemetry("d1", "device"), {"group": "device", "samples": [{"values": {"x": 1.0}}]}, ts=wrong
    )
    detail = await bench.registry.device(VIEWER, "d1")
    assert detail.state in PRESENT
    assert detail.seen_at == bench.clock.time()
    series = await bench.telemetry.series(VIEWER, "d1", "x", since=bench.clock.time() - 60)
    assert [point.at for point in series.points] == [bench.clock.time()]
