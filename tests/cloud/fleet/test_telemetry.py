"""Telemetry: every sample counted once in its minute and hour, whatever breaks off; nothing kept longer than said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.db.tables import Arrival, EventRow, RollupRow, SampleRow
from edgewise.cloud.fleet.telemetry.rollups import figures, roll_up
from edgewise.core.errors import InvalidRequest, NotFound
from edgewise.wire import topics
from tests.cloud.fleet.bench import STRANGER, VIEWER, Bench


async def tell(
    bench: Bench, values: dict[str, float], *, group: str = "device", age_s: float = 0.0, uid: str = "d1"
) -> None:
    body = {"group": group, "age_ms": int(age_s * 1000), "samples": [{"values": values}]}
    await bench.say(topics.telemetry(uid, group), body)


async def count(bench: Bench, table: Any) -> int:
    return await bench.db.read(lambda session: session.scalar(select(func.count()).select_from(table)) or 0)


async def series(bench: Bench, name: str = "x", **facts: Any) -> list[tuple[float, float, float, float]]:
    now = bench.clock.time()
    view = await bench.telemetry.series(VIEWER, "d1", name, **{"since": now - 86_400, **facts})
    return [(round(point.at - now, 3), point.mean, point.least, point.most) for point in view.points]


async def test_samples_stand_at_their_age_by_the_services_clock(bench: Bench) -> None:
    await bench.device()
    samples = [{"before_ms": 20_000, "values": {"x": 1.0}}, {"values": {"x": 2.0, "y": 5.0}}]
    await bench.say(topics.telemetry("d1", "device"), {"group": "device", "age_ms": 10_000, "samples": samples})
    assert await series(bench) == [(-30.0, 1.0, 1.0, 1.0), (-10.0, 2.0, 2.0, 2.0)]
    assert await series(bench, "y") == [(-10.0, 5.0, 5.0, 5.0)]
    assert await bench.telemetry.names(VIEWER, "d1") == ["x", "y"]


async def test_the_newest_values_are_the_gauges_and_late_ones_are_not(bench: Bench) -> None:
    await bench.device()
    await tell(bench, {"x": 1.0, "y": 1.0})
    await tell(bench, {"x": 0.0}, age_s=3600)  # what waited in the outbox
    await tell(bench, {"z": 9.0}, group="engine", age_s=60)
    await tell(bench, {"y": 2.0})
    assert (await bench.registry.device(VIEWER, "d1")).gauges == {"y": 2.0, "z": 9.0}  # the last one did not know x
    assert await bench.telemetry.names(VIEWER, "d1") == ["x", "y", "z"]


async def test_figures_of_minutes_and_hours_are_the_same_before_and_after_they_are_computed(bench: Bench) -> None:
    await bench.device()
    bench.clock.set(1_800_000_030.0)
    for value, age in ((1.0, 100), (3.0, 95), (10.0, 20), (20.0, 0)):
        await tell(bench, {"x": value}, age_s=age)
    minutes = await series(bench, span_s=60)
    assert [(mean, least, most) for _, mean, least, most in minutes] == [(2.0, 1.0, 3.0), (15.0, 10.0, 20.0)]
    hours = await series(bench, span_s=3600)
    await bench.keeper.roll_up(batch=1)
    await bench.keeper.roll_up()
    assert await series(bench, span_s=60) == minutes
    assert await series(bench, span_s=3600) == hours
    await tell(bench, {"x": 2.0}, age_s=97)  # late: it belongs to a minute that is computed
    await bench.keeper.roll_up()
    assert (await series(bench, span_s=60))[0][1:] == (2.0, 1.0, 3.0)
    assert await bench.db.read(
        lambda session: session.scalars(select(RollupRow.count).where(RollupRow.span_s == 60)).all()
    )


async def test_a_roll_up_that_breaks_off_counts_nothing_twice(bench: Bench) -> None:
    await bench.device()
    for value in range(10):
        await tell(bench, {"x": float(value)})

    def dies(session: Session) -> None:
        assert roll_up(session, 4) == 4
        session.flush()
        raise RuntimeError("the process is killed before the commit")

    with pytest.raises(RuntimeError):
        await bench.db.write(dies)
    assert await count(bench, RollupRow) == 0
    await bench.db.write(lambda session: roll_up(session, 4) and None)
    await bench.keeper.roll_up(batch=3)
    total = await bench.db.read(
        lambda session: session.execute(
            select(func.sum(RollupRow.count), func.sum(RollupRow.total)).where(RollupRow.span_s == 3600)
        ).one()
    )
    assert tuple(total) == (10, 45.0)


async def test_what_is_too_old_is_deleted_but_no_sample_that_is_not_counted(bench: Bench) -> None:
    await bench.device()
    await tell(bench, {"x": 1.0})
    bench.clock.advance(25 * 3600)
    await bench.keeper.delete()
    assert await count(bench, SampleRow) == 1
    await bench.keeper.roll_up()
    await bench.keeper.delete()
    assert (await count(bench, SampleRow), await count(bench, RollupRow)) == (0, 2)
    bench.clock.advance(7 * 86_400)
    await bench.keeper.delete()
    spans = await bench.db.read(lambda session: session.scalars(select(RollupRow.span_s)).all())
    assert list(spans) == [3600]
    assert await count(bench, Arrival) == 0  # forgotten after three days
    bench.clock.advance(366 * 86_400)
    await bench.keeper.delete()
    assert (await count(bench, RollupRow), await count(bench, EventRow)) == (0, 0)


async def test_the_finest_span_that_gives_few_enough_points_is_chosen(bench: Bench) -> None:
    await bench.device()
    await tell(bench, {"x": 1.0})
    await bench.keeper.roll_up()
    now = bench.clock.time()
    for since, span in ((600, 0), (5 * 3600, 0), (3 * 86_400, 3600), (30 * 86_400, 3600)):
        view = await bench.telemetry.series(VIEWER, "d1", "x", since=now - since)
        assert (view.span_s, len(view.points)) == (span, 1)
    many = {"group": "device", "samples": [{"before_ms": 20_000 * n, "values": {"x": 1.0}} for n in range(500)]}
    await bench.say(topics.telemetry("d1", "device"), many)
    assert (await bench.telemetry.series(VIEWER, "d1", "x", since=now - 5 * 3600)).span_s == 60


async def test_readiness_and_throttling_show_in_the_state(bench: Bench) -> None:
    await bench.device()
    await tell(bench, {"throttled": 1.0})
    detail = await bench.registry.device(VIEWER, "d1")
    assert (detail.state, detail.state_reason) == ("degraded", "the hardware throttles")
    await tell(bench, {"throttled": 0.0})
    assert (await bench.registry.device(VIEWER, "d1")).state == "online"


async def test_bad_telemetry_is_dropped_and_bad_questions_are_refused(bench: Bench) -> None:
    await bench.other_tenant()
    await bench.device()
    await bench.say(topics.telemetry("d1", "other"), {"group": "device", "samples": [{"values": {"x": 1.0}}]})
    for number in range(12):
        values = {f"n{number}_{index}": 1.0 for index in range(50)}
        await tell(bench, values)
    assert bench.count("messages_dropped_total", reason="malformed") == 3
    assert len(await bench.telemetry.names(VIEWER, "d1")) == 500
    assert await count(bench, SampleRow) == 10  # of what is refused nothing is kept
    with pytest.raises(InvalidRequest, match="span_s"):
        await bench.telemetry.series(VIEWER, "d1", "x", since=0, span_s=61)
    with pytest.raises(InvalidRequest, match="until"):
        await bench.telemetry.series(VIEWER, "d1", "x", since=10, until=5)
    with pytest.raises(NotFound):
        await bench.telemetry.series(STRANGER, "d1", "x", since=0)


moments = st.floats(0, 20_000, allow_nan=False)
values = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), moments, values), max_size=60))
def test_every_sample_is_in_one_minute_and_one_hour(samples: list[tuple[str, float, float]]) -> None:
    found = figures((uid, at, {"x": value}) for uid, at, value in samples)
    for span in (60, 3600):
        mine = {place: figure for place, figure in found.items() if place[2] == span}
        assert sum(figure.count for figure in mine.values()) == len(samples)
        for uid, at, value in samples:
            figure = mine[uid, "x", span, int(at // span) * span]
            assert figure.least <= value <= figure.most
