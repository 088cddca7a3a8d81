"""Desired and reported state over real brokers: applied whole or not at all, and once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edgewise.core.errors import SourceUnavailable
from edgewise.wire import topics
from edgewise.wire.fleet import Event, Reported, Sync
from tests.e2e.broker import BrokerProcess
from tests.edge.agent.device import Device, DeviceFactory
from tests.edge.agent.fleet import FleetDouble, until


async def stands(fleet: FleetDouble, shadow: str, seen: int, state: str) -> Reported:
    """The first report of a shadow that says so."""

    def found() -> Reported | None:
        told = fleet.reported(shadow)
        return told if told is not None and (told.seen, told.state) == (seen, state) else None

    result: Reported = await until(found, f"{shadow} {seen} {state}; it is {fleet.reported(shadow)}")
    return result


def alarms(fleet: FleetDouble) -> list[str]:
    return [
        event.message for one in fleet.each("evt") for event in [one.read(Event)] if event.kind == "desired_refused"
    ]


POLICY = {"telemetry": {"period_s": 1800}, "budgets": {"daily_bytes": 1000000}, "labels": {"site": "lyon"}, "later": 1}


async def test_a_policy_is_applied_reported_and_there_after_a_start(
    broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory
) -> None:
    device = await new_device(broker)
    await fleet.desire("policy", 3, POLICY)
    told = await stands(fleet, "policy", 3, "applied")
    assert (told.applied, told.document) == (3, POLICY)  # what a later fleet says is kept
    assert device.agent._telemetry.period_s == 1800
    assert device.agent._uplink.budget.daily_bytes == 1_000_000
    await device.stop()
    device = await new_device(broker)
    await until(lambda: device.agent._telemetry.period_s == 1800, "it is in force again")
    gens = [{"policy": 3}]
    await until(lambda: [one.read(Sync).gens for one in fleet.of("sync")][-1:] == gens, "the generation in a sync")


@pytest.mark.parametrize(
    ("shadow", "document", "named"),
    [
        ("policy", {"telemetry": {"period_s": 0}}, "telemetry.period_s"),
        ("config", {"placement.polcy": "auto"}, "placement.policy"),
        ("config", {"engine.max_context": "wide"}, "engine.max_context"),
        ("config", {"limits.keepalive_s": 20.0, "mqtt.host": "elsewhere"}, "`mqtt.host` can be set at the device only"),
        ("config", {"security.require_key": False}, "security.require_key"),
        ("models", {"models": [{"name": "../x"}]}, "../x"),
        ("models", {"models": [{"name": "a", "digest": "sha256:1"}]}, "digest"),
        ("software", {"version": "99"}, "unsigned"),
    ],
)
async def test_a_bad_document_is_refused_whole(
    one_broker: BrokerProcess,
    new_device: DeviceFactory,
    uid: str,
    tmp_path: Any,
    shadow: str,
    document: Any,
    named: str,
) -> None:
    await new_device(one_broker)
    async with FleetDouble(one_broker, uid, tmp_path) as fleet:
        await fleet.desire(shadow, 1, document)
        told = await stands(fleet, shadow, 1, "refused")
        assert told.applied == 0
        assert named in told.reason
        assert [named in alarm for alarm in await until(lambda: alarms(fleet))] == [True]


async def test_what_was_good_stays_under_a_bad_one_and_under_an_empty_one(fleet: FleetDouble, device: Device) -> None:
    """F16: an empty document after one that was not is a fault of the other side."""
    await fleet.desire("policy", 1, POLICY)
    await stands(fleet, "policy", 1, "applied")
    for gen, document in ((2, {"budgets": {"daily_bytes": -1}}), (3, {})):
        await fleet.desire("policy", gen, document)
        told = await stands(fleet, "policy", gen, "refused")
        assert (told.applied, told.document) == (1, POLICY)
        assert device.agent._telemetry.period_s == 1800
    assert len(await until(lambda: len(alarms(fleet)) == 2 and alarms(fleet))) == 2
    await fleet.desire("policy", 4, {"labels": {}})
    assert (await stands(fleet, "policy", 4, "applied")).applied == 4
    await fleet.desire("policy", 5, {}, clear=True)
    assert (await stands(fleet, "policy", 5, "applied")).document == {}


async def test_an_older_document_and_the_same_again_change_nothing(fleet: FleetDouble, device: Device) -> None:
    """F18: connecting again brings the retained document again, and nothing is done for it."""
    await fleet.desire("policy", 5, POLICY)
    await stands(fleet, "policy", 5, "applied")
    device.agent._telemetry.period_s = 77.0  # would be set anew
    await fleet.desire("policy", 4, {"telemetry": {"period_s": 20}})
    await fleet.desire("policy", 5, POLICY)
    await until(lambda: fleet.of("sync"), "all is said of the first connect")
    device.cut()
    await until(lambda: len(fleet.of("sync")) >= 2, "a sync after the cut")
    await fleet.does("ping")
    assert device.agent._telemetry.period_s == 77.0
    assert fleet.reported("policy").seen == 5  # type: ignore[union-attr]


async def test_a_change_made_while_the_device_was_away_is_applied(
    broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory
) -> None:
    """F14."""
    device = await new_device(broker)
    await until(lambda: fleet.of("sync"))
    await device.stop()
    await fleet.desire("policy", 1, POLICY)
    device = await new_device(broker)
    await stands(fleet, "policy", 1, "applied")


async def test_a_cleared_message_takes_nothing_away(fleet: FleetDouble, device: Device) -> None:
    await fleet.desire("policy", 1, POLICY)
    await stands(fleet, "policy", 1, "applied")
    await fleet.link.publish(topics.desired(fleet.uid, "policy"), b"", retain=True)
    await fleet.does("ping")
    assert device.agent._telemetry.period_s == 1800


async def test_a_newer_document_ends_work_for_an_older_one(
    fleet: FleetDouble, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F07: one that is stuck does not block what comes after it."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def stuck(*_: object, **__: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(device.agent._desired._installer, "pull", stuck)
    await fleet.desire("models", 1, {"models": [{"name": "far-away"}]})
    await until(begun.is_set, "it begins")
    await fleet.desire("models", 2, {"models": []})
    await stands(fleet, "models", 2, "applied")
    assert ended.is_set()


async def test_what_cannot_be_done_now_is_pending_and_done_later(
    fleet: FleetDouble, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    async def away(what: str, **_: object) -> list[Any]:
        tries.append(what)
        if len(tries) < 3:
            raise SourceUnavailable("The hub cannot be reached.")
        return []

    keeper = device.agent._desired.twin._keepers["models"]
    monkeypatch.setattr(keeper, "_pauses_s", (0.05,))
    monkeypatch.setattr(device.agent._desired._installer, "pull", away)
    await fleet.desire("models", 1, {"models": [{"name": "far-away"}]})
    assert (await stands(fleet, "models", 1, "applied")).applied == 1
    reasons = [(told.state, told.reason) for one in fleet.of("rep/models") for told in [one.read(Reported)]]
    assert ("pending", "The hub cannot be reached.") in reasons
    assert tries == ["far-away"] * 3


# --- configuration -------------------------------------------------------------------------------------------------------------


async def test_a_setting_that_takes_effect_at_once_does(fleet: FleetDouble, device: Device) -> None:
    await fleet.desire("config", 1, {"agent.telemetry_s": 1234.0})
    told = await stands(fleet, "config", 1, "applied")
    assert told.applied == 1
    # The device's own flag says otherwise, so that stays in force, and is reported as its edit.
    assert told.document == {"agent.telemetry_s": 3600.0}
    edits = {edit.path: edit for edit in told.edits}
    assert (edits["agent.telemetry_s"].value, edits["agent.telemetry_s"].author) == (3600.0, "command line")
    assert "limits.keepalive_s" not in edits


async def test_a_setting_that_needs_a_start_is_pending_until_it_answered(
    broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory
) -> None:
    device = await new_device(broker)
    await fleet.desire("config", 1, {"limits.keepalive_s": 33.0})
    why = "limits.keepalive_s: they take effect at the next start"
    told = await until(lambda: (found := fleet.reported("config")) and found.reason == why and found, "why it waits")
    assert (told.state, told.applied, device.ended) == ("pending", 0, [])
    await device.stop()
    device = await new_device(broker)
    assert device.loaded.settings.limits.keepalive_s == 33.0
    assert device.loaded.origins["limits.keepalive_s"] == "fleet"
    assert (await stands(fleet, "config", 1, "applied")).document == {"limits.keepalive_s": 33.0}


async def test_the_service_restarts_by_itself_only_if_the_policy_says_so(fleet: FleetDouble, device: Device) -> None:
    await fleet.desire("policy", 1, {"restart": "auto"})
    await stands(fleet, "policy", 1, "applied")
    await fleet.desire("config", 1, {"limits.keepalive_s": 33.0})
    await stands(fleet, "config", 1, "pending")
    await until(lambda: device.ended == [75], "the service ends")


async def test_local_edits_of_a_file_are_told_with_author_and_age(
    broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory, tmp_path: Any
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "none.toml").write_text('[limits]\nkeepalive_s = 44.0\n[cloud]\nkey = "very-secret"\n')
    await new_device(broker)
    await fleet.desire("config", 1, {"limits.keepalive_s": 33.0})
    told = await stands(fleet, "config", 1, "applied")  # nothing to do: the device's own value wins
    assert told.document == {"limits.keepalive_s": 44.0}
    edits = {edit.path: edit for edit in told.edits}
    assert edits["limits.keepalive_s"].value == 44.0
    assert "none.toml" in edits["limits.keepalive_s"].author
    assert edits["limits.keepalive_s"].age_s is not None
    assert "very-secret" not in str(told)
