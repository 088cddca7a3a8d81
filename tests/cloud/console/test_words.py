"""Values as people read them."""

from __future__ import annotations

import re
from pathlib import Path

from edgewise.cloud.console.pages.alerts import condition_text
from edgewise.cloud.console.pages.device_now import governor_of
from edgewise.cloud.console.pages.settings import setting_text
from edgewise.cloud.console.words import GAUGES, differences, gauge_of, memory_share, size, span
from edgewise.cloud.fleet.alerts.rules import DEFAULTS
from edgewise.cloud.fleet.views import EventView


def test_what_differs_comes_first_and_by_path() -> None:
    desired = {"engine": {"batch": 16, "kv": "int8"}, "name": "a"}
    reported = {"engine": {"batch": 8, "kv": "int8"}, "host": "h"}
    lines = differences(desired, reported)
    assert [(line.path, line.left, line.right, line.word) for line in lines] == [
        ("engine.batch", 16, 8, "changed"),
        ("name", "a", None, "only desired"),
        ("host", None, "h", "only reported"),
        ("engine.kv", "int8", "int8", "same"),
    ]


def test_a_value_that_became_null_differs_from_one_that_is_not_there() -> None:
    assert [line.word for line in differences({"a": None}, {"a": 1})] == ["changed"]
    assert [line.word for line in differences({"a": None}, {})] == ["only desired"]


def test_sizes_and_durations() -> None:
    assert [size(n) for n in (12, 2048, 5.5 * 1024**3)] == ["12\u00a0B", "2.0\u00a0KiB", "5.5\u00a0GiB"]
    assert [span(s) for s in (0.25, 45, 60, 90, 3600, 7200, 86400, 2.6e5)] == [
        "0.2\u00a0s", "45\u00a0s", "1\u00a0min", "90\u00a0s", "1\u00a0h", "2\u00a0h", "1\u00a0d", "3\u00a0d",
    ]  # fmt: skip


def test_an_unknown_value_of_telemetry_has_its_own_name() -> None:
    assert gauge_of("npu_load").label == "Npu load"
    assert gauge_of("memory_used").text(5.0 * 1024**3) == "5.0\u00a0GiB"
    assert memory_share({"memory_used": 2.0, "memory_total": 8.0}) == 0.25
    assert memory_share({"memory_used": 2.0}) is None


def test_the_reason_of_a_level_is_that_of_an_event_with_just_this_level() -> None:
    def event(kind: str, level: str, reason: str) -> EventView:
        facts = {"level": level, "reason": reason}
        return EventView(id=reason, uid="d1", kind=kind, severity="info", message="", facts=facts, at=5.0)

    hot, warm = event("governor_slows", "hot", "84 C"), event("governor_eases", "warm", "80 C")
    other = event("presence", "hot", "no governor")
    word, why, at = governor_of({"governor_level": 1.0}, [other, warm, hot])
    assert (word and word.word, why, at) == ("Warm", "Reason: 80 C.", 5.0)
    assert "is not here" in governor_of({"governor_level": 2.0}, [warm, hot])[1], "telemetry came before its event"
    assert governor_of({}, [hot])[0] is None


def test_every_value_of_telemetry_that_is_documented_has_a_name() -> None:
    table = (Path(__file__).parents[3] / "docs/telemetry.md").read_text("utf-8").partition("\n\nPercentiles")[0]
    named = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall("`(\\w+)`", line.split("|")[1])
    }
    assert len(named) > 20
    assert named - GAUGES.keys() == set()


def test_every_default_rule_reads_as_a_sentence() -> None:
    for rule in DEFAULTS:
        text = condition_text(rule.condition.model_dump(mode="json"))
        assert len(text) > 15, rule.name
        assert "None" not in text, rule.name
        assert "e+" not in text, rule.name


def test_the_bound_of_a_rule_has_its_unit() -> None:
    disk = {"kind": "gauge", "value": "disk_free", "below": 2.0 * 1024**3, "for_s": 60}
    assert condition_text(disk) == "Disk free below 2\u00a0GiB for 1\u00a0min"
    memory = {"kind": "gauge", "value": "memory_used", "of": "memory_total", "above": 0.8, "for_s": 60}
    assert condition_text(memory) == "Memory used above 80\u00a0% of memory of the machine for 1\u00a0min"
    throttled = {"kind": "gauge", "value": "throttled", "above": 0.5, "for_s": 30}
    assert condition_text(throttled) == "Throttling by the hardware is on for 30\u00a0s"


def test_a_setting_has_its_unit() -> None:
    given = {"session_s": 43200.0, "grace_s": 5.0, "certificate_days": 90.0, "webhook_hosts": (), "port": 8600}
    assert [setting_text(name, value) for name, value in given.items()] == [
        "43200 s (12\u00a0h)", "5 s", "90 days", "", "8600",
    ]  # fmt: skip
