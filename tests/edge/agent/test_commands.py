"""Commands over real brokers: each is on disk before it is accepted, done once, in its lane, and has an end that is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from edgewise.core.errors import EngineUnavailable
from edgewise.core.log import get_logger
from edgewise.edge.agent.commands.operation import Args, Call, Operation, checked
from edgewise.edge.agent.ops.models import model_operations
from edgewise.wire import topics
from edgewise.wire.envelope import encode, new_ulid
from edgewise.wire.fleet import Ack, Command, Event, LogPart, Sync
from tests.e2e.broker import BrokerProcess
from tests.edge.agent.device import Device, DeviceFactory
from tests.edge.agent.fleet import FleetDouble, until
from tests.fakes.serving import says


class Lab:
    """Operations that a test drives: `go` lets them end, `runs` are the ids that ran, in order."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.runs: list[str] = []

    def operation(self, name: str, lane: Any, **options: Any) -> Operation:
        async def run(call: Call) -> dict[str, Any]:
            self.runs.append(call.id)
            await call.progress("waiting")
            await self.go.wait()
            return {"ran": self.runs.count(call.id)}

        return Operation(name=name, lane=lane, check=checked(Args), run=run, **options)

    def add_to(self, device: Device) -> None:
        for operation in (
            self.operation("lab.control", "control"),
            self.operation("lab.update", "update"),
            self.operation("lab.repeat", "update", repeatable=True),
        ):
            device.agent._desk._operations[operation.name] = operation  # type: ignore[index]


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    made = Lab()
    yield made
    made.go.set()


def states(fleet: FleetDouble, id: str) -> list[str]:
    found: list[str] = []
    for ack in fleet.acks(id):
        if not found or found[-1] != ack.state:
            found.append(ack.state)
    return found


async def kept(device: Device, id: str) -> str | None:
    record = await device.agent._inbox.find(id)
    return None if record is None else record.state


async def test_a_command_is_on_disk_when_it_is_accepted(fleet: FleetDouble, device: Device, lab: Lab) -> None:
    lab.add_to(device)
    id = await fleet.command("lab.update")
    await until(lambda: fleet.acks(id), "accepted")
    assert fleet.acks(id)[0].state == "accepted"
    assert await kept(device, id) in ("accepted", "running")
    lab.go.set()
    end = await fleet.end(id)
    assert (end.state, end.result) == ("succeeded", {"ran": 1})
    assert states(fleet, id) == ["accepted", "running", "succeeded"]


async def test_the_same_id_is_done_once_and_answered_each_time(fleet: FleetDouble, device: Device, lab: Lab) -> None:
    """F03: one live attempt per id; a repeat after the end, and after its receipt, is answered from the disk."""
    lab.add_to(device)
    id = new_ulid()
    for _ in range(3):
        await fleet.command("lab.update", id=id)
    lab.go.set()
    await fleet.end(id)
    await until(lambda: lab.runs, "a run")
    told = len(fleet.of(f"ack/{id}"))
    await fleet.command("lab.update", id=id)
    await until(lambda: len(fleet.of(f"ack/{id}")) > told, "another answer")
    assert {ack.state for ack in fleet.ends(id)} == {"succeeded"}
    assert lab.runs == [id]


@pytest.mark.parametrize(
    ("op", "args", "code", "named"),
    [
        ("brew", {}, "unknown_op", "brew"),
        ("ping", {"loud": True}, "invalid_value", "'loud'"),
        ("infer", {"prompt": "a", "max_tokens": "many"}, "invalid_type", "'max_tokens'"),
        ("infer", {}, "invalid_value", "'messages'"),
        ("infer", {"prompt": "a", "n": 3}, "invalid_value", "'n'"),
        ("infer", {"prompt": "a", "surprise": 1}, "unknown_parameter", "'surprise'"),
        ("model.pull", {}, "invalid_value", "'name'"),
        ("logs", {"lines": 0}, "invalid_value", "'lines'"),
        ("software", {"version": "9"}, "unsigned", "signed"),
    ],
)
async def test_what_cannot_be_done_is_rejected_with_the_field(
    one_broker: BrokerProcess,
    new_device: DeviceFactory,
    uid: str,
    tmp_path: Any,
    op: str,
    args: Any,
    code: str,
    named: str,
) -> None:
    await new_device(one_broker)
    async with FleetDouble(one_broker, uid, tmp_path) as fleet:
        end = await fleet.does(op, **args)
        assert (end.state, end.code, end.retryable) == ("rejected", code, False)
        assert named in end.reason


async def test_a_later_version_is_rejected_by_name(fleet: FleetDouble, device: Device) -> None:
    id = new_ulid()
    message = {"v": 2, "id": id, "ep": 1, "seq": 1, "body": {"op": "ping", "shape": "of version two"}}
    await fleet.link.publish(topics.command(fleet.uid, "ping"), json.dumps(message).encode())
    end = await fleet.end(id)
    assert (end.state, end.code) == ("rejected", "version")


async def test_a_retained_command_is_never_done(
    fleet: FleetDouble, broker: BrokerProcess, new_device: DeviceFactory
) -> None:
    """F27, F28: it would be done at each connect. The fleet hears where it is."""
    topic = topics.command(fleet.uid, "ping")
    id = await fleet.command("ping", retain=True)
    await new_device(broker)
    try:
        event = (await until(lambda: fleet.of("evt"), "an event"))[0].read(Event)
        assert (event.kind, event.facts["topic"]) == ("retained_command", topic)
        assert not fleet.acks(id)
    finally:
        await fleet.link.publish(topic, b"", retain=True)


async def test_a_command_that_waited_too_long_is_expired(
    monkeypatch: pytest.MonkeyPatch, fleet: FleetDouble, device: Device
) -> None:
    """The time to live counts from the receipt, on the device's own monotonic clock."""
    going = asyncio.Event()
    command = device.agent._desk.command
    monkeypatch.setitem(device.agent._mail._handlers, "cmd", lambda letter: _after(going, lambda: command(letter)))
    brief = fleet.link.sealer.seal(Command(op="ping"), ttl_ms=1)
    await fleet.link.publish(topics.command(fleet.uid, "ping"), encode(brief))  # without an expiry at the broker
    id, lasting = brief.id, await fleet.command("ping", ttl_ms=600_000)
    waiting = device.agent._mail._waiting._queue  # type: ignore[attr-defined]
    await until(lambda: "cmd" in [letter.kind for letter in waiting], "the second one waits")
    await asyncio.sleep(0.01)  # longer than the first may live
    going.set()
    assert (await fleet.end(id)).state == "expired"
    assert (await fleet.end(lasting)).state == "succeeded"


async def test_a_command_that_expired_at_the_broker_holds_no_other_up(
    broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory
) -> None:
    """F27: it is not done when the device comes back, and what was sent behind it is."""
    device = await new_device(broker)
    await fleet.does("ping")
    await device.stop()
    late = await fleet.command("ping", ttl_ms=1000)
    await asyncio.sleep(2.2)  # longer than it may live
    behind = await fleet.command("ping")
    await new_device(broker)
    assert (await fleet.end(behind)).state == "succeeded"
    assert fleet.acks(late) == []


async def _after(event: asyncio.Event, work: Callable[[], Any]) -> None:
    await event.wait()
    await work()


async def test_a_lane_keeps_its_order_and_holds_no_other_up(fleet: FleetDouble, device: Device, lab: Lab) -> None:
    """F07: one bad command does not block the rest."""
    lab.add_to(device)
    stuck = await fleet.command("lab.update")
    behind = await fleet.command("lab.update")
    assert (await fleet.does("ping")).state == "succeeded"
    assert (await fleet.does("infer", prompt="a", max_tokens=2)).state == "succeeded"
    assert lab.runs == [stuck]
    assert states(fleet, behind) == ["accepted"]
    syncs = len(fleet.of("sync"))
    device.cut()
    await until(lambda: len(fleet.of("sync")) > syncs, "a sync")
    assert fleet.of("sync")[-1].read(Sync).open == (stuck, behind)
    lab.go.set()
    await fleet.end(behind)
    assert lab.runs == [stuck, behind]


async def test_both_timers_end_a_command_and_extending_moves_them(fleet: FleetDouble, device: Device, lab: Lab) -> None:
    """F07: a watchdog ends what is stuck."""
    lab.add_to(device)
    total = await fleet.command("lab.update", total_s=0.2)
    step = await fleet.command("lab.control", step_s=0.2)
    for id, words in ((total, "whole command"), (step, "no progress for 0.2 s in the step 'waiting'")):
        end = await fleet.end(id)
        assert (end.state, end.code, end.retryable) == ("timed-out", "deadline_exceeded", True)
        assert words in end.reason
    longer = await fleet.command("lab.update", total_s=60, step_s=0.5)
    await until(lambda: "running" in states(fleet, longer))
    await fleet.control(longer, "extend", extend_s=600)
    await until(
        lambda: longer in device.agent._desk.lanes._calls and device.agent._desk.lanes._calls[longer]._left_s() > 60
    )
    lab.go.set()
    assert (await fleet.end(longer)).state == "succeeded"


async def test_cancel_ends_what_runs_and_what_waits(fleet: FleetDouble, device: Device, lab: Lab) -> None:
    lab.add_to(device)
    runs, waits = await fleet.command("lab.update"), await fleet.command("lab.update")
    await until(lambda: "running" in states(fleet, runs))
    await fleet.control(waits, "cancel")
    assert (await fleet.end(waits)).state == "cancelled"
    assert "running" not in states(fleet, waits)
    await fleet.control(runs, "cancel")
    assert (await fleet.end(runs)).state == "cancelled"
    done = await fleet.command("ping")
    await fleet.end(done)
    await fleet.control(done, "cancel")  # too late: what really happened stays
    await fleet.does("ping")
    assert {ack.state for ack in fleet.ends(done)} == {"succeeded"}


async def test_after_a_crash_nothing_is_lost_and_nothing_done_twice(
    broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory
) -> None:
    """What had begun and may be repeated runs again, what may not has failed, what had not begun begins."""
    device, lab = await new_device(broker), Lab()
    lab.add_to(device)
    once, again = await fleet.command("lab.control"), await fleet.command("lab.repeat")
    behind = await fleet.command("lab.update")
    await until(lambda: {once, again} <= set(lab.runs) and fleet.acks(behind), "both run")
    await device.crash()
    later = Lab()
    later.go.set()
    device = await new_device(broker, prepare=later.add_to)
    failed = await fleet.end(once)
    assert (failed.state, failed.code, failed.retryable) == ("failed", "interrupted", True)
    assert (await fleet.end(again)).state == "succeeded"
    assert (await fleet.end(behind)).state == "succeeded"
    assert later.runs == [again, behind]


async def test_a_cancel_survives_a_crash(broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory) -> None:
    device, lab = await new_device(broker), Lab()
    lab.add_to(device)
    id = await fleet.command("lab.repeat")
    await until(lambda: lab.runs, "it runs")
    await device.agent._inbox.cancel(id)
    await device.crash()
    later = Lab()
    device = await new_device(broker, prepare=later.add_to)
    assert (await fleet.end(id)).state == "cancelled"
    assert later.runs == []


async def test_the_end_is_told_where_the_command_wants_it_too_but_only_on_topics_of_the_device(
    fleet: FleetDouble, device: Device
) -> None:
    """For programs that wait for one message; the broker's access list forbids a device all other topics."""
    reply = f"f/1/d/{fleet.uid}/up/reply/here"
    await fleet.send(topics.command(fleet.uid, "ping"), Command(op="ping"), to=reply)
    (told,) = await until(lambda: fleet.of("reply/here"), "the reply")
    assert told.read(Ack).state == "succeeded"
    id = await fleet.send(topics.command(fleet.uid, "ping"), Command(op="ping"), to="f/1/d/other/up/ack/x")
    assert (await fleet.end(id)).state == "succeeded"
    assert device.link.connected


async def test_an_error_is_told_by_its_code(fleet: FleetDouble, device: Device) -> None:
    device.engine.refuse = EngineUnavailable("The engine is starting.")
    end = await fleet.does("infer", prompt="a")
    assert (end.state, end.code, end.retryable) == ("failed", "engine_unavailable", True)
    end = await fleet.does("infer", prompt="a", model="nosuch")
    assert (end.state, end.code, end.retryable) == ("failed", "model_not_found", False)


# --- infer ---------------------------------------------------------------------------------------------------------------------


async def test_pieces_pause_without_credit_and_go_on_with_a_grant(fleet: FleetDouble, device: Device) -> None:
    device.engine.script = says("x" * 100)
    id = await fleet.command("infer", prompt="a", max_tokens=200)
    await until(lambda: len(fleet.pieces(id)) == 64, "as many as were granted by asking")
    calls = device.agent._desk.lanes._calls
    await until(lambda: calls[id].pieces.count == 64 and calls[id].pieces._credit == 0)
    await fleet.control(id, "grant", credit=10)
    await until(lambda: len(fleet.pieces(id)) == 74, "as many as were granted")
    assert not fleet.ends(id)
    await fleet.control(id, "grant", credit=1000)
    end = await fleet.end(id)
    assert end.result is not None
    pieces = fleet.pieces(id)
    assert sorted(pieces) == list(range(len(pieces)))
    assert "".join(pieces[offset] for offset in sorted(pieces)) == end.result["choices"][0]["text"]
    assert end.result["choices"][0]["text"] == "x" * 100


async def test_pieces_go_on_over_a_cut_link(fleet: FleetDouble, device: Device) -> None:
    device.engine.hold.clear()
    device.engine.script = says("y" * 50)
    id = await fleet.command("infer", prompt="a", max_tokens=60)
    await until(lambda: device.engine.requests, "it runs")
    device.engine.delay_s = 0.01
    device.engine.hold.set()
    await until(lambda: fleet.pieces(id), "the first piece")
    device.cut()
    end = await fleet.end(id)
    assert end.result is not None
    await until(lambda: sorted(fleet.pieces(id)) == list(range(len(fleet.pieces(id)))), "all pieces")
    assert "".join(text for _, text in sorted(fleet.pieces(id).items())) == end.result["choices"][0]["text"]


async def test_a_result_that_no_message_holds_is_left_out_and_said(
    fleet: FleetDouble, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.edge.agent.commands.lanes.MAX_RESULT", 1000)
    device.engine.script = says("z" * 30)
    short = await fleet.does("ping")
    assert short.reason == ""
    id = await fleet.command("infer", prompt="a", max_tokens=40)
    end = await fleet.end(id)
    assert (end.state, "is left out" in end.reason) == ("succeeded", True)
    assert "".join(text for _, text in sorted(fleet.pieces(id).items())) == "z" * 30


async def test_several_answers_at_once_with_the_fleet_among_the_requests(fleet: FleetDouble, device: Device) -> None:
    device.engine.hold.clear()
    ids = [await fleet.command("infer", messages=[{"role": "user", "content": "hi"}], max_tokens=3) for _ in range(3)]
    await until(lambda: len(device.engine.open) == 3, "all run")
    shown = device.deps.requests.show()["in_flight"]
    assert {(one["route"], one["key"]) for one in shown} == {("fleet/infer", "fleet")}
    assert {one["id"] for one in shown} == set(ids)
    device.engine.hold.set()
    for id in ids:
        end = await fleet.end(id)
        assert end.state == "succeeded"
        assert end.result is not None
        assert end.result["object"] == "chat.completion"


async def test_a_cancelled_answer_frees_the_engine(fleet: FleetDouble, device: Device) -> None:
    device.engine.hold.clear()
    id = await fleet.command("infer", prompt="a")
    await until(lambda: device.engine.open, "it runs")
    await fleet.control(id, "cancel")
    assert (await fleet.end(id)).state == "cancelled"
    await until(lambda: not device.engine.open, "the engine is free")
    assert device.deps.requests.open == 0


# --- the service ---------------------------------------------------------------------------------------------------------------


async def test_logs_come_in_parts_and_the_result_counts_them(fleet: FleetDouble, device: Device) -> None:
    for number in range(300):
        get_logger("edgewise.test").warning("line_of_test", number=number, prompt="secret words", note="x" * 900)
    id = await fleet.command("logs", lines=250, level="warning")
    end = await fleet.end(id)
    assert end.result is not None
    assert end.result["lines"] == 250
    count = end.result["parts"]
    assert count > 1

    def arrived() -> dict[int, LogPart]:
        return {part.index: part for one in fleet.of(f"log/{id}") for part in [one.read(LogPart)]}

    await until(lambda: len(arrived()) == count, "all parts, some of them perhaps twice")
    parts = arrived()
    lines = [json.loads(line) for index in sorted(parts) for line in parts[index].lines]
    assert [line["number"] for line in lines] == list(range(50, 300))
    assert "secret words" not in str(lines)
    assert [part.last for _, part in sorted(parts.items())] == [False] * (len(parts) - 1) + [True]


async def test_drain_ends_new_work_and_says_when_nothing_runs(fleet: FleetDouble, device: Device) -> None:
    end = await fleet.does("drain", limit_s=5)
    assert (end.state, end.result) == ("succeeded", {"idle": True, "open": 0})
    refused = await fleet.does("infer", prompt="a")
    assert (refused.state, refused.code, refused.retryable) == ("failed", "shutting_down", True)


async def test_a_restart_has_succeeded_when_the_next_start_answers(
    broker: BrokerProcess, fleet: FleetDouble, new_device: DeviceFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F05, F23: success is told after the new start has answered a real token, and names both starts."""
    device = await new_device(broker)
    id = await fleet.command("restart")
    await until(lambda: device.ended == [75], "the service ends")
    assert not fleet.ends(id)
    await device.stop()
    monkeypatch.setattr("edgewise.edge.agent.part.STARTED", "the-next-start")
    device = await new_device(broker, prepare=lambda made: made.engine.hold.clear())
    await until(lambda: device.engine.requests, "a token is asked for")
    assert not fleet.ends(id)
    device.engine.hold.set()
    end = await fleet.end(id)
    assert end.state == "succeeded"
    assert end.result is not None
    assert end.result["started"] == "the-next-start" != end.result["before"]["started"]
    assert end.result["answered"] is True
    assert device.ended == []


def test_no_operation_removes_the_service_itself() -> None:
    """F10: an agent that can delete itself once will."""
    names = {operation.name for operation in model_operations(None, None)}  # type: ignore[arg-type]
    assert names == {"model.pull", "model.load", "model.unload", "model.remove"}


def test_acks_of_pieces_fit_their_message() -> None:
    assert Ack(state="running", offset=0, text="x" * 64 * 1024)
