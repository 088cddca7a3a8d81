"""What rules mean: bounds, hysteresis, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.fleet.alerts.machine import Reading, Standing, hold_s, read, step
from edgewise.cloud.fleet.alerts.rules import (
    DEFAULTS,
    Certificate,
    Gauge,
    Offline,
    OutOfSync,
    read_condition,
    read_rule,
)
from edgewise.core.errors import InvalidRequest

HOT = Gauge(value="temperature_c", above=80, clear=75, for_s=60)


def standings(condition: Any, *moments: tuple[float, float | None]) -> list[bool]:
    """Whether the alert is open after each (time, value)."""
    standing, raised = Standing(), []
    for now, value in moments:
        standing = step(standing, read(condition, value), hold_s(condition), now)
        raised.append(standing.raised)
    return raised


def test_an_alert_waits_and_does_not_flap() -> None:
    assert standings(HOT, (0, 81), (59, 90), (60, 82), (70, 78), (80, 76), (90, 75), (100, 81)) == [
        *(False, False, True),  # it must hold for a minute
        *(True, True, False),  # between bound and way back nothing changes
        False,
    ]
    assert standings(HOT, (0, 81), (30, 79), (60, 81), (119, 81), (120, 81)) == [False, False, False, False, True]


def test_what_is_not_known_neither_raises_nor_ends_an_alert() -> None:
    assert standings(HOT, (0, None), (60, 81), (120, None), (121, 81), (200, None), (201, 70)) == [
        *(False, False, False, True, True),
        False,
    ]


def test_bounds_from_below_and_the_usual_way_back() -> None:
    disk = Gauge(value="disk_free", below=0.1, for_s=0)
    assert standings(disk, (0, 0.09), (1, 0.102), (2, 0.106)) == [True, True, False]
    assert standings(Gauge(value="queue", above=10, for_s=0), (0, 11), (1, 9.6), (2, 9.5)) == [True, True, False]


def test_conditions_without_a_bound() -> None:
    assert read(Offline(), 1.0) == Reading(1.0, beyond=True, back=False)
    assert read(OutOfSync(), 0.0) == Reading(0.0, beyond=False, back=True)
    assert standings(Certificate(below_days=14), (0, 20.0), (1, 13.9), (2, 89.0)) == [False, True, False]


@given(
    bound=st.floats(-1e6, 1e6),
    values=st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=40),
    above=st.booleans(),
)
def test_an_open_alert_has_gone_beyond_and_not_come_back(bound: float, values: list[float | None], above: bool) -> None:
    condition = Gauge(value="queue", above=bound, for_s=0) if above else Gauge(value="queue", below=bound, for_s=0)
    standing = Standing()
    for now, value in enumerate(values):
        reading = read(condition, value)
        assert not (reading.beyond and reading.back)
        before, standing = standing, step(standing, reading, 0.0, float(now))
        if standing.raised and not before.raised:
            assert reading.beyond
        if before.raised and not standing.raised:
            assert reading.back


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({}, "name"),
        ({"name": "a", "condition": {"kind": "gauge", "value": "x"}}, "condition.gauge"),
        ({"name": "a", "condition": {"kind": "gauge", "value": "x", "above": 1, "below": 0}}, "condition.gauge"),
        ({"name": "a", "condition": {"kind": "gauge", "value": "x", "above": 80, "clear": 85}}, "condition.gauge"),
        ({"name": "a", "condition": {"kind": "gauge", "value": "X Y", "above": 80}}, "condition.gauge.value"),
        ({"name": "a", "condition": {"kind": "weather"}}, "condition"),
        ({"name": "a", "condition": {"kind": "offline"}, "deliver": [{}]}, "deliver.0"),
        ({"name": "a", "condition": {"kind": "offline"}, "deliver": [{"mail": "nobody"}]}, "deliver.0.mail"),
        ({"name": "a", "condition": {"kind": "offline"}, "colour": "red"}, "colour"),
    ],
)
def test_bad_rules_are_refused_by_field(rule: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_rule(rule)
    assert caught.value.param == field


def test_the_default_rules_can_be_stored_and_read() -> None:
    assert len({rule.name for rule in DEFAULTS}) == len(DEFAULTS)
    for rule in DEFAULTS:
        stored = rule.condition.model_dump(mode="json", exclude_none=True)
        assert read_condition(stored) == rule.condition
        assert read_rule({**rule.model_dump(mode="json", exclude_none=True)}) == rule
