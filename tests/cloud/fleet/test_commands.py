"""Commands: sent until acknowledged or too late, ended once, and what only a device may say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.audit_log import AuditService
from edgewise.cloud.fleet.commands.life import Known, judge
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, CommandLog, CommandRow, CommandStep, Rollout
from edgewise.cloud.fleet.rollouts.facts import PROBE, command_key
from edgewise.core.errors import InvalidRequest, KeyReused, NotFound, NotPermitted, StorageError
from edgewise.wire import topics
from edgewise.wire.envelope import new_ulid
from edgewise.wire.fleet import ENDED, Ack, CommandState, Live, LogPart
from tests.cloud.fleet.bench import ADMIN, OPERATOR, STRANGER, VIEWER, Bench, until


async def send(bench: Bench, op: str = "ping", uid: str = "d1", **facts: Any) -> str:
    """One command, sent as far as it can be now; its id."""
    (view,) = await bench.commands.send(OPERATOR, [uid], op, **facts)
    await bench.step()
    return view.id


async def state(bench: Bench, id: str) -> str:
    return (await bench.commands.command(VIEWER, id)).state


async def test_a_command_through_its_life_with_its_timeline(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, total_s=60, step_s=10)
    ((uid, sent_id, command, ttl_ms),) = bench.down.commands
    assert (uid, sent_id, command.op, command.total_s, command.step_s, ttl_ms) == ("d1", id, "ping", 60, 10, 300_000)
    await bench.ack("d1", id, "accepted")
    await bench.ack("d1", id, "running", step="half", percent=50)
    await bench.ack("d1", id, "succeeded", result={"pong": 1})
    view = await bench.commands.command(VIEWER, id)
    assert (view.state, view.result) == ("succeeded", {"pong": 1})
    assert [step.state for step in view.steps] == ["queued", "sent", "accepted", "running", "succeeded"]
    assert view.steps[3].percent == 50


async def test_only_a_device_makes_a_command_more_than_sent(bench: Bench) -> None:
    """F01: one to a device that is away stays queued, whatever the broker took."""
    await bench.device(online=False)
    id = await send(bench)
    assert (await state(bench, id), bench.down.commands) == ("queued", [])
    assert (bench.commands._agenda.next() or 0.0) > bench.clock.monotonic()  # nobody spins for it
    await bench.online()
    await bench.sync()
    assert (await state(bench, id), bench.down.sent(id)) == ("sent", 1)
    await bench.step(30)
    assert await state(bench, id) == "sent"


async def test_it_is_sent_again_after_5_15_and_every_60_seconds_and_at_each_sync(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, ttl_s=10_000)
    times = []
    for second in range(190):
        before = bench.down.sent(id)
        await bench.step(1)
        times += [second + 1] * (bench.down.sent(id) - before)
    assert times == [5, 20, 80, 140]
    await bench.sync()
    assert bench.down.sent(id) == 6
    assert {one[1] for one in bench.down.commands} == {id}
    assert await state(bench, id) == "sent"


async def test_it_is_not_sent_again_once_it_is_accepted(bench: Bench) -> None:
    await bench.device()
    id = await send(bench)
    await bench.ack("d1", id, "accepted")
    await bench.step(500)
    await bench.sync(open=[id])
    assert bench.down.sent(id) == 1


async def test_it_expires_by_the_services_clock_and_says_how_long_it_is_good_for(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, ttl_s=12)
    await bench.step(5)
    assert [one[3] for one in bench.down.commands] == [12_000, 7_000]
    bench.clock.set(bench.clock.time() - 5 * 365 * 86_400)  # somebody sets the wall clock: no time has passed
    await bench.step(6)
    assert await state(bench, id) == "sent"
    await bench.step(2)
    assert await state(bench, id) == "expired"
    await bench.step(100)
    assert bench.down.sent(id) == 2


async def test_a_late_acceptance_does_not_change_the_end_but_asks_the_device_to_stop(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, ttl_s=5)
    await bench.step(6)
    await bench.ack("d1", id, "accepted")
    await until(lambda: bool(bench.down.asked_to("cancel")))
    assert bench.down.asked_to("cancel") == [id]
    await bench.ack("d1", id, "cancelled")
    view = await bench.commands.command(VIEWER, id)
    assert view.state == "expired"
    assert view.steps[-1].state == "cancelled"
    assert "had been expired here" in view.steps[-1].reason


async def test_an_end_is_final(bench: Bench) -> None:
    """F03: "delivered, then failed" is one attempt with one end."""
    await bench.device()
    id = await send(bench)
    await bench.ack("d1", id, "failed", code="engine_error", reason="no memory", retryable=True)
    await bench.ack("d1", id, "succeeded")
    await bench.ack("d1", id, "running")
    view = await bench.commands.command(VIEWER, id)
    assert (view.state, view.code, view.reason, view.retryable) == ("failed", "engine_error", "no memory", True)


async def test_acks_of_a_superseded_order_are_ignored(bench: Bench) -> None:
    await bench.device()
    id = await send(bench)
    await bench.ack("d1", id, "running", step="two", ep=2, seq=5)
    await bench.ack("d1", id, "running", step="one", ep=2, seq=4)
    await bench.ack("d1", id, "accepted", ep=3, seq=1)  # sent again after a reconnect: it is no step back
    view = await bench.commands.command(VIEWER, id)
    assert (view.state, view.step) == ("running", "two")


async def test_one_stuck_command_does_not_hold_up_the_others(bench: Bench) -> None:
    """F07: a later one is sent; the stuck one ends by the service's own watchdog when its device is there and says nothing."""
    await bench.device()
    stuck = await send(bench, "model.pull", total_s=100)
    await bench.ack("d1", stuck, "accepted")
    other = await send(bench)
    await bench.ack("d1", other, "succeeded")
    await bench.step(399)
    assert await state(bench, stuck) == "accepted"
    await bench.step(2)
    view = await bench.commands.command(VIEWER, stuck)
    assert (view.state, view.code) == ("timed-out", "no_word")
    assert bench.down.asked_to("cancel") == [stuck]


async def test_a_device_that_is_away_may_still_say_how_it_ended(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, "model.pull", total_s=10)
    await bench.ack("d1", id, "accepted")
    await bench.say(topics.live("d1"), Live(state="offline", expected_s=1e6))
    await bench.step(100_000)
    assert await state(bench, id) == "accepted"
    bench.ep = 2
    await bench.online()
    await bench.ack("d1", id, "succeeded")
    assert await state(bench, id) == "succeeded"


async def test_what_a_device_no_longer_knows_has_failed(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, "model.pull")
    await bench.ack("d1", id, "accepted")
    await bench.sync(open=[id])
    assert await state(bench, id) == "accepted"
    await bench.sync(open=[], outbox={"result": 1})  # its end may be on its way
    assert await state(bench, id) == "accepted"
    fresh = await send(bench, "model.pull")
    await bench.ack("d1", fresh, "accepted", seq=10_000)
    await bench.sync(open=[])  # said before the device accepted the fresh one
    assert await state(bench, fresh) == "accepted"
    view = await bench.commands.command(VIEWER, id)
    assert (view.state, view.code) == ("failed", "lost")


async def test_a_cancel_before_it_was_sent_ends_it_at_once(bench: Bench) -> None:
    await bench.device(online=False)
    id = await send(bench)
    assert (await bench.commands.cancel(OPERATOR, id)).state == "cancelled"
    await bench.online()
    await bench.sync()
    assert bench.down.commands == []


async def test_a_cancel_is_a_request_and_the_device_says_what_happened(bench: Bench) -> None:
    await bench.device()
    id = await send(bench)
    await bench.ack("d1", id, "accepted")
    bench.down.up = False
    assert (await bench.commands.cancel(OPERATOR, id)).state == "accepted"
    bench.down.up = True
    await bench.sync(open=[id])  # it could not be asked before
    assert bench.down.asked_to("cancel") == [id]
    await bench.ack("d1", id, "succeeded")
    assert (await bench.commands.cancel(OPERATOR, id)).state == "succeeded"


async def test_a_key_makes_a_repeat_the_same_command(bench: Bench) -> None:
    for uid in ("d1", "d2"):
        await bench.device(uid)
    first = await bench.commands.send(OPERATOR, ["d1"], "ping", {"n": 1}, key="k")
    again = await bench.commands.send(OPERATOR, ["d1", "d2"], "ping", {"n": 1}, key="k")
    assert again[0].id == first[0].id
    assert again[1].id != first[0].id
    await bench.step()
    assert sorted(one[0] for one in bench.down.commands) == ["d1", "d2"]
    with pytest.raises(KeyReused):
        await bench.commands.send(OPERATOR, ["d1"], "ping", {"n": 2}, key="k")


async def test_a_batch_is_one_line_of_the_audit_log_and_can_be_listed(bench: Bench) -> None:
    uids = [f"d{n}" for n in range(5)]
    for uid in uids:
        await bench.device(uid)
    sent = await bench.commands.send(OPERATOR, uids, "ping")
    assert [view.uid for view in sent] == uids
    batch = sent[0].batch_id
    first = await bench.commands.commands(VIEWER, batch_id=batch, limit=3)
    rest = await bench.commands.commands(VIEWER, batch_id=batch, limit=3, after=first.after)
    assert (first.total, len(first.items), len(rest.items), rest.after) == (5, 3, 2, None)
    assert [view.id for view in (*first.items, *rest.items)] == [view.id for view in reversed(sent)]


async def test_what_was_open_is_taken_up_after_a_restart(db: FleetDatabase) -> None:
    old = Bench(db)
    old.ingest.start()
    await old.device()
    queued, sent, accepted = [await send(old, ttl_s=100) for _ in range(3)]
    await old.ack("d1", accepted, "accepted")
    await old.ack("d1", queued, "succeeded")
    await old.ingest.stop()
    new = Bench(db)
    new.clock.advance(50)
    await new.commands._sender.recover()
    await new.step()
    assert [one[1] for one in new.down.commands] == [sent]
    assert new.down.commands[0][3] == 50_000
    await new.step(51)
    assert (await state(new, sent), await state(new, accepted)) == ("expired", "accepted")


async def test_nothing_is_lost_while_the_broker_is_away(bench: Bench) -> None:
    await bench.device()
    bench.down.up = False
    (view,) = await bench.commands.send(OPERATOR, ["d1"], "ping")
    with pytest.raises(Exception, match="not there"):
        await bench.step()
    assert await state(bench, view.id) == "queued"
    bench.down.up = True
    await bench.step(1)
    assert await state(bench, view.id) == "sent"


async def test_a_command_whose_commit_was_not_heard_of_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is killed at the commit may have it, though whoever asked was told that it failed."""
    await bench.device()
    write = bench.db.write

    async def unheard(work: Callable[[Any], Any]) -> None:
        await write(work)
        raise StorageError("The connection broke at the commit (test).")

    with monkeypatch.context() as broken:
        broken.setattr(bench.db, "write", unheard)
        with pytest.raises(StorageError):
            await bench.commands.send(OPERATOR, ["d1"], "ping", key="k")
    (view,) = await bench.commands.send(OPERATOR, ["d1"], "ping", key="k")
    await bench.step()
    assert bench.down.sent(view.id) == 1


async def test_the_lines_of_a_log_in_order_each_part_once(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, "logs")
    await bench.say(topics.log_part("d1", id), {"index": 1, "lines": ["c"], "last": True})
    await bench.say(topics.log_part("d1", id), {"index": 0, "lines": ["a", "b"]})
    await bench.say(topics.log_part("d1", id), {"index": 0, "lines": ["a", "b"]})
    assert await bench.commands.log(VIEWER, id) == ["a", "b", "c"]


async def test_a_device_cannot_acknowledge_the_command_of_another(bench: Bench) -> None:
    await bench.device("d1")
    await bench.device("d2")
    id = await send(bench, uid="d1")
    await bench.ack("d2", id, "succeeded")
    assert await state(bench, id) == "sent"
    assert bench.count("messages_dropped_total", reason="malformed") == 1
    await bench.step(6)
    assert bench.down.sent(id) == 2  # it is still owed


async def test_pieces_of_what_has_ended_are_kept_nowhere(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, "infer")
    await bench.ack("d1", id, "succeeded")
    for offset in range(5):
        await piece(bench, id, offset)
    assert bench.commands._streams._answers == {}
    assert await state(bench, id) == "succeeded"


@pytest.mark.parametrize(
    "facts",
    [{"op": "Rm -rf"}, {"args": {"x": "y" * 300_000}}, {"ttl_s": 0}, {"total_s": -1}],
    ids=lambda facts: next(iter(facts)),
)
async def test_bad_arguments_are_refused_by_name(bench: Bench, facts: Mapping[str, Any]) -> None:
    await bench.device()
    ((name, _),) = facts.items()
    with pytest.raises(InvalidRequest, match=name) as refused:
        await bench.commands.send(OPERATOR, ["d1"], **{"op": "ping", **facts})
    assert refused.value.param == name


async def test_who_may_not_or_cannot_see(bench: Bench) -> None:
    await bench.other_tenant()
    await bench.device()
    id = await send(bench)
    with pytest.raises(NotPermitted):
        await bench.commands.send(VIEWER, ["d1"], "ping")
    with pytest.raises(NotFound):
        await bench.commands.send(STRANGER, ["d1"], "ping")
    for reading in (
        bench.commands.command(STRANGER, id),
        bench.commands.log(STRANGER, id),
        bench.commands.cancel(STRANGER, id),
    ):
        with pytest.raises(NotFound):
            await reading
    assert (await bench.commands.commands(STRANGER)).total == 0


async def test_what_is_asked_of_a_model_is_not_in_the_audit_log(bench: Bench) -> None:
    await bench.device()
    await send(bench, "infer", args={"prompt": "my secret"})
    (entry,) = (await AuditService(bench.db).entries(ADMIN)).items
    assert entry.action == "command.send"
    assert "secret" not in str(entry)
    assert entry.after is not None
    assert entry.after["args"] == ["prompt"]


# --- streams --------------------------------------------------------------------------------------------------------------------


async def piece(bench: Bench, id: str, offset: int) -> None:
    await bench.ack("d1", id, "running", offset=offset, text=f"<{offset}>")


async def test_a_stream_brings_each_piece_once_and_ends_with_the_command(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, "infer", args={"prompt": "x"})
    got: list[Ack] = []

    async def read() -> None:
        got.extend([ack async for ack in bench.commands.stream(VIEWER, id)])

    reading = asyncio.create_task(read())
    await until(lambda: bool(bench.commands._streams._answers))
    await bench.ack("d1", id, "accepted")
    for offset in (0, 1, 1, 0, 2):
        await piece(bench, id, offset)
    await bench.ack("d1", id, "succeeded", result={"text": "<0><1><2>"})
    await reading
    assert [ack.text for ack in got if ack.text] == ["<0>", "<1>", "<2>"]
    assert got[-1].state == "succeeded"
    view = await bench.commands.command(VIEWER, id)
    assert len(view.steps) == 5  # queued, sent, accepted, running, succeeded: no piece is a step
    assert [ack async for ack in bench.commands.stream(VIEWER, id)][-1].result == {"text": "<0><1><2>"}


async def test_credit_follows_what_is_read(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, "infer")
    reader = bench.commands.stream(VIEWER, id)
    first = asyncio.ensure_future(anext(reader))
    await until(lambda: bool(bench.commands._streams._answers))
    for offset in range(64):
        await piece(bench, id, offset)
    assert bench.down.asked_to("grant") == []  # 64 have come and one was read
    assert (await first).offset == 0
    for _ in range(31):
        await anext(reader)
    await asyncio.sleep(0)
    await bench.settle()
    assert sum(control.credit for _, _, control in bench.down.controls) == 32
    await reader.aclose()  # type: ignore[attr-defined]  # a generator
    await asyncio.sleep(0)
    await bench.settle()
    assert sum(control.credit for _, _, control in bench.down.controls) == 64  # without a reader all that came is read


async def test_an_answer_that_nobody_reads_comes_to_its_end_all_the_same(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, "infer")
    for offset in range(120):
        await piece(bench, id, offset)
    granted = sum(control.credit for _, _, control in bench.down.controls)
    assert 120 - 32 < granted <= 120


async def test_a_stream_ends_when_the_command_ends_here(bench: Bench) -> None:
    await bench.device()
    id = await send(bench, ttl_s=5)

    async def read() -> list[Ack]:
        return [ack async for ack in bench.commands.stream(VIEWER, id)]

    reading = asyncio.create_task(read())
    await until(lambda: bool(bench.commands._streams._answers))
    await bench.step(6)
    assert [ack.state for ack in await reading] == ["expired"]


# --- rules ----------------------------------------------------------------------------------------------------------------------

states = st.sampled_from(sorted({"accepted", "running", *ENDED}))


@given(st.lists(st.tuples(states, st.tuples(st.integers(1, 3), st.integers(1, 9))), max_size=12))
def test_whatever_is_acknowledged_a_command_has_one_end_and_never_goes_back(
    acks: list[tuple[CommandState, tuple[int, int]]],
) -> None:
    known, ranks = Known("sent", (0, 0)), ["sent", "accepted", "running"]
    for ack, place in acks:
        before = known
        if judge(known, ack, place) == "apply":
            known = Known(ack, place)
        if before.state in ENDED:
            assert known == before
        elif ack in ENDED:
            assert known.state == ack
        else:
            assert ranks.index(known.state) >= ranks.index(before.state)
            assert known.place >= before.place


def test_views_of_commands_have_every_state_that_the_wire_has() -> None:
    for one in ("queued", "sent", "accepted", "running", *ENDED):
        view = {
            "id": new_ulid(),
            "uid": "d",
            "op": "ping",
            "args": {},
            "author": "",
            "state": one,
            "created_at": 0,
            "changed_at": 0,
        }
        assert views.CommandView.model_validate(view).state == one


async def test_ended_commands_are_kept_for_their_days_and_open_ones_for_ever(bench: Bench) -> None:
    await bench.device()
    keys = {name: command_key(name[0] * 26, PROBE) for name in ("going", "over")}

    def plan(session: Session) -> None:
        for name, state in (("going", "paused"), ("over", "succeeded")):
            facts: dict[str, Any] = {"tenant_id": FIRST_TENANT, "name": name, "shadow": "models", "document": {}}
            facts |= {"query": "", "plan": {}, "created_at": 0.0, "changed_at": 0.0}
            session.add(Rollout(id=name[0] * 26, state=state, **facts))

    await bench.db.write(plan)
    ids = {name: await send(bench, key=key) for name, key in {"plain": None, **keys}.items()}
    many = [await send(bench) for _ in range(120)]  # more than one transaction deletes
    for id in (*ids.values(), *many):
        await bench.ack("d1", id, "succeeded")
    await bench.say(topics.log_part("d1", ids["plain"]), LogPart(index=0, last=True, lines=("a",)))
    bench.clock.advance(89 * 86_400)
    still = await send(bench, ttl_s=30 * 86_400)
    late = await send(bench)
    await bench.ack("d1", late, "succeeded")
    await bench.keeper.delete()
    assert (await state(bench, ids["plain"]), await left(bench, CommandRow)) == ("succeeded", 125)
    bench.clock.advance(2 * 86_400)
    await bench.keeper.delete()
    rows = await bench.db.read(lambda session: set(session.scalars(select(CommandRow.id))))
    assert rows == {still, late, ids["going"]}
    assert await left(bench, CommandLog) == 0
    steps = await bench.db.read(lambda session: set(session.scalars(select(CommandStep.command_id))))
    assert steps == rows


async def left(bench: Bench, table: Any) -> int:
    return await bench.db.read(lambda session: session.scalar(select(func.count()).select_from(table)) or 0)
