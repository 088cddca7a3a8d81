"""Devices, labels, groups, events and the audit log, as people see them."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select, update

from edgewise.cloud.fleet import audit
from edgewise.cloud.fleet.audit_log import AuditService
from edgewise.cloud.fleet.db.tables import AuditRow, Device, DeviceKey
from edgewise.core.errors import Conflict, InvalidRequest, NotFound, NotPermitted
from edgewise.wire import topics
from edgewise.wire.fleet import Live, ModelState
from tests.cloud.fleet.bench import ADMIN, OPERATOR, STRANGER, VIEWER, Bench


async def walk(bench: Bench, sort: str, limit: int = 3, query: str = "") -> list[str]:
    """All pages of a list."""
    uids: list[str] = []
    after = None
    while True:
        page = await bench.registry.devices(VIEWER, query, sort=sort, limit=limit, after=after)
        uids += [view.uid for view in page.items]
        assert page.total == 7
        after = page.after
        if after is None:
            return uids


async def test_pages_bring_each_device_once_in_order(bench: Bench) -> None:
    for number, name in enumerate(["b", "A", "c", "B", "a", "C", ""]):
        await bench.device(f"d{number}", name=name, online=number % 2 == 0)
        bench.clock.advance(1)
    await bench.say(topics.live("d0"), Live(state="offline", reason="will"))
    await bench.step(10)
    by_name = await walk(bench, "name")
    assert by_name == ["d6", "d1", "d4", "d0", "d3", "d2", "d5"]
    assert await walk(bench, "-name") == by_name[::-1]
    assert await walk(bench, "name", limit=1) == by_name
    assert await walk(bench, "uid") == sorted(by_name)
    assert await walk(bench, "state") == ["d0", "d1", "d3", "d5", "d2", "d4", "d6"]  # what needs attention first
    assert await walk(bench, "-seen") == ["d6", "d4", "d2", "d0", "d5", "d3", "d1"]


async def test_a_page_neither_skips_nor_repeats_when_devices_come_and_go(bench: Bench) -> None:
    for name in "bdf":
        await bench.device(name, name=name)
    page = await bench.registry.devices(VIEWER, limit=2)
    await bench.device("a", name="a")
    await bench.device("e", name="e")
    await bench.registry.retire(ADMIN, "b")
    rest = await bench.registry.devices(VIEWER, limit=5, after=page.after)
    assert [view.uid for view in (*page.items, *rest.items)] == ["b", "d", "e", "f"]


@pytest.mark.parametrize("after", ["x", "", "bm8", "WyJuYW1lIiwxLCJ4Il0", "WyJ1aWQiLCJhIiwiYiJd"])
async def test_a_cursor_of_elsewhere_is_refused(bench: Bench, after: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await bench.registry.devices(VIEWER, after=after)
    assert refused.value.param == "after"


async def test_bad_sorts_and_limits_are_refused_by_name(bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match="sort: 'colour'"):
        await bench.registry.devices(VIEWER, sort="colour")
    for limit in (0, 1001):
        with pytest.raises(InvalidRequest, match="limit"):
            await bench.registry.devices(VIEWER, limit=limit)


async def test_counts_by_state_and_models_of_the_fleet(bench: Bench) -> None:
    for uid in ("a", "b", "c"):
        await bench.device(uid, online=uid != "c")
    assert await bench.registry.counts(VIEWER) == {"online": 2, "never-seen": 1}
    assert await bench.registry.counts(VIEWER, "uid:a") == {"online": 1}
    await bench.born(
        "a", models=[ModelState(name="m", digest="sha256:1", loaded=True), ModelState(name="x", state="failed")]
    )
    await bench.born("b", models=[ModelState(name="m", digest="sha256:1"), ModelState(name="m2", state="removed")])
    used = [(one.name, one.devices, one.loaded, one.failed) for one in await bench.registry.models(VIEWER)]
    assert used == [("m", 2, 1, 0), ("x", 1, 0, 1)]


async def test_an_edit_changes_what_is_given_and_is_in_the_audit_log(bench: Bench) -> None:
    await bench.device(name="old", labels={"site": "lyon"})
    detail = await bench.registry.edit(OPERATOR, "d1", labels={"site": "Paris", "n": 3})
    assert (detail.name, detail.labels) == ("old", {"site": "Paris", "n": 3})
    detail = await bench.registry.edit(OPERATOR, "d1", name="New", notes="by the door")
    assert (detail.name, detail.labels, detail.notes) == ("New", {"site": "Paris", "n": 3}, "by the door")
    assert await bench.registry.uids(VIEWER, "site:paris name:new n>2") == ["d1"]
    assert await bench.registry.uids(VIEWER, "site:lyon") == []
    entry = (await AuditService(bench.db).entries(ADMIN, target="d1")).items[0]
    assert (entry.action, entry.actor, entry.via) == ("device.edit", "otto", "test")
    assert entry.before is not None
    assert (entry.before["name"], entry.before["notes"]) == ("old", "")


@pytest.mark.parametrize(
    "labels",
    [
        {"1x": "a"},
        {"a b": "c"},
        {"x": ["y"]},
        {"x": "y" * 200},
        {"x": "a\nb"},
        {"a": 1, "A": 2},
        {f"n{n}": 1 for n in range(65)},
    ],
)
async def test_bad_labels_are_refused_by_name(bench: Bench, labels: dict[str, object]) -> None:
    await bench.device()
    with pytest.raises(InvalidRequest, match="labels") as refused:
        await bench.registry.edit(OPERATOR, "d1", labels=labels)
    assert refused.value.param == "labels"


async def test_a_retired_device_is_gone_for_people_and_its_keys_are_revoked(bench: Bench) -> None:
    await bench.device()
    key = DeviceKey(
        id="k1",
        tenant_id=ADMIN.tenant,
        uid="d1",
        state="active",
        csr="",
        fingerprint="f",
        created_at=1.0,
        changed_at=1.0,
    )
    await bench.db.write(lambda session: session.add(key))
    (command,) = await bench.commands.send(OPERATOR, ["d1"], "ping")
    with pytest.raises(NotPermitted):
        await bench.registry.retire(OPERATOR, "d1")
    await bench.registry.retire(ADMIN, "d1")
    with pytest.raises(NotFound):
        await bench.registry.device(VIEWER, "d1")
    assert await bench.registry.uids(VIEWER, "") == []
    assert await bench.db.read(lambda session: session.scalar(select(DeviceKey.state))) == "revoked"
    assert (await bench.commands.command(VIEWER, command.id)).state == "cancelled"
    assert bench.down.forgotten == ["d1"]
    assert (await AuditService(bench.db).entries(ADMIN, target="d1")).items[0].action == "device.retire"


async def test_nothing_of_another_tenant_is_ever_found(bench: Bench) -> None:
    await bench.other_tenant()
    await bench.device("d1", name="mine", labels={"site": "x"})
    await bench.device("s1", tenant=STRANGER.tenant, name="theirs", labels={"site": "x"})
    await bench.registry.save_group(OPERATOR, "g", "site:x")
    assert await bench.registry.uids(VIEWER, "site:x") == ["d1"]
    assert await bench.registry.uids(STRANGER, "site:x OR name:mine") == ["s1"]
    assert await bench.registry.counts(STRANGER) == {"online": 1}
    assert await bench.registry.groups(STRANGER) == []
    with pytest.raises(InvalidRequest, match="no group"):
        await bench.registry.uids(STRANGER, "group:g")
    for work in (bench.registry.device(STRANGER, "d1"), bench.registry.retire(STRANGER, "d1")):
        with pytest.raises(NotFound):
            await work
    assert {event.uid for event in (await bench.registry.events(STRANGER)).items} == {"s1"}


async def test_groups_are_saved_counted_and_deleted(bench: Bench) -> None:
    await bench.device("d1", labels={"site": "x"})
    group = await bench.registry.save_group(OPERATOR, "x-site", "site:x")
    assert group.count == 1
    assert (await bench.registry.save_group(OPERATOR, "x-site", "site:y")).id == group.id
    other = await bench.registry.save_group(OPERATOR, "both", "group:x-site OR uid:d1")
    assert [(one.name, one.count) for one in await bench.registry.groups(VIEWER)] == [("both", 1), ("x-site", 0)]
    with pytest.raises(Conflict, match="both"):
        await bench.registry.delete_group(OPERATOR, group.id)
    await bench.registry.delete_group(OPERATOR, other.id)
    await bench.registry.delete_group(OPERATOR, group.id)
    with pytest.raises(NotFound):
        await bench.registry.delete_group(OPERATOR, group.id)
    with pytest.raises(InvalidRequest, match="name"):
        await bench.registry.save_group(OPERATOR, "two words", "")
    actions = [entry.action for entry in (await AuditService(bench.db).entries(ADMIN)).items]
    assert actions == ["group.delete", "group.delete", "group.save", "group.save", "group.save"]


async def test_events_of_devices_the_latest_first_in_pages(bench: Bench) -> None:
    await bench.device()
    for number in range(5):
        event = {"kind": f"k{number}", "severity": "critical", "age_ms": 60_000, "facts": {"n": number}}
        await bench.say(topics.event("d1", "critical"), event)
    page = await bench.registry.events(VIEWER, "d1", limit=4)
    rest = await bench.registry.events(VIEWER, "d1", limit=4, after=page.after)
    assert [event.kind for event in (*page.items, *rest.items)] == ["k4", "k3", "k2", "k1", "k0", "device.online"]
    assert page.total == 6
    assert (page.items[0].severity, page.items[0].facts) == ("critical", {"n": 4})
    assert page.items[0].at == bench.clock.time() - 60


# --- the audit log --------------------------------------------------------------------------------------------------------------


async def test_the_chain_tells_of_every_change_and_where(bench: Bench) -> None:
    log = AuditService(bench.db)
    for number in range(6):
        await bench.db.write(lambda session, n=number: audit.record(session, ADMIN, "test.do", str(n)) and None)  # type: ignore[misc]
    assert await log.verify(ADMIN) is None
    number, head = await log.head(ADMIN)
    assert number == 6

    def forge(session: object) -> None:
        session.execute(update(AuditRow).where(AuditRow.number == 3).values(actor="somebody"))  # type: ignore[attr-defined]

    await bench.db.write(forge)
    assert "Line 3 was changed" in (await log.verify(ADMIN) or "")
    await bench.db.write(lambda session: session.delete(session.get(AuditRow, (ADMIN.tenant, 3))))
    assert "Line 3 is missing" in (await log.verify(ADMIN) or "")
    assert len(head) == 64


async def test_the_log_is_read_in_pages_and_exported_whole(bench: Bench) -> None:
    log = AuditService(bench.db)
    for number in range(5):
        await bench.db.write(lambda session, n=number: audit.record(session, ADMIN, "test.do", str(n)) and None)  # type: ignore[misc]
    page = await log.entries(VIEWER, limit=3)
    rest = await log.entries(VIEWER, limit=3, after=page.after)
    assert [entry.number for entry in (*page.items, *rest.items)] == [5, 4, 3, 2, 1]
    lines = [json.loads(line) async for line in log.export(ADMIN)]
    before = audit.FIRST
    for line in lines:
        row = AuditRow(**{name: value for name, value in line.items() if name != "digest"})
        assert audit.digest(row, before).hex() == line["digest"]
        before = bytes.fromhex(line["digest"])
    assert len(lines) == 5
    assert (await log.entries(STRANGER)).total == 0
    with pytest.raises(NotPermitted):
        await log.verify(OPERATOR)


async def test_rows_of_devices_begin_with_what_the_code_expects(bench: Bench) -> None:
    """A row that somebody else adds, as an enrolment does, needs no more than its name."""
    row = Device(uid="bare", tenant_id=ADMIN.tenant, created_at=1.0)
    await bench.db.write(lambda session: session.add(row))
    view = (await bench.registry.devices(VIEWER, "uid:bare")).items[0]
    assert (view.state, view.labels, view.gauges, view.models) == ("never-seen", {}, {}, ())
    await bench.online("bare")
    assert (await bench.registry.device(VIEWER, "bare")).state == "online"
