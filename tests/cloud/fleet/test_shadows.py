"""Desired and reported state: every device gets the newest document, once, whoever was away when it was made."""

from __future__ import annotations

from typing import Any

import pytest

from edgewise.cloud.fleet.audit_log import AuditService
from edgewise.core.errors import InvalidRequest, NotFound, NotPermitted
from edgewise.wire import topics
from edgewise.wire.fleet import Desired, ModelState, Reported
from tests.cloud.fleet.bench import ADMIN, OPERATOR, STRANGER, VIEWER, Bench

DOCUMENT = {"placement.policy": "prefer-local"}


async def report(bench: Bench, shadow: str = "config", *, uid: str = "d1", ep: int = 1, **facts: Any) -> None:
    await bench.say(topics.reported(uid, shadow), Reported.model_validate({"state": "applied", **facts}), ep=ep)


async def test_a_document_is_sent_at_once_and_reported(bench: Bench) -> None:
    await bench.device()
    view = await bench.shadows.desire(OPERATOR, "d1", "config", DOCUMENT)
    assert (view.gen, view.desired, view.author, view.in_sync) == (1, DOCUMENT, "otto", False)
    ((uid, shadow, desired),) = bench.down.documents
    assert (uid, shadow, desired.gen, desired.document, desired.author) == ("d1", "config", 1, DOCUMENT, "otto")
    await report(bench, seen=1, applied=1, document=DOCUMENT)
    view = await bench.shadows.shadow(VIEWER, "d1", "config")
    assert view.in_sync
    assert view.reported == DOCUMENT


async def test_one_that_was_made_while_the_broker_was_away_is_sent_at_the_sync(bench: Bench) -> None:
    """F14: every connect is a full comparison."""
    await bench.device()
    bench.down.up = False
    await bench.shadows.desire(OPERATOR, "d1", "config", DOCUMENT)
    assert bench.down.documents == []
    bench.down.up = True
    await bench.sync(gens={"config": 0})
    assert [one.gen for _, _, one in bench.down.documents] == [1]
    await bench.sync(gens={"config": 1})
    assert len(bench.down.documents) == 1
    await bench.sync(gens={})  # it lost its disk
    assert len(bench.down.documents) == 2


async def test_a_new_broker_gets_what_devices_have_not_seen(bench: Bench) -> None:
    await bench.device("d1")
    await bench.device("d2")
    for uid in ("d1", "d2"):
        await bench.shadows.desire(OPERATOR, uid, "config", DOCUMENT)
    await report(bench, uid="d1", seen=1, applied=1)
    bench.down.documents.clear()
    await bench.shadows.linked()
    assert [uid for uid, _, _ in bench.down.documents] == ["d2"]


async def test_what_is_desired_empty_is_meant_so(bench: Bench) -> None:
    await bench.device()
    for document in (DOCUMENT, {}):
        await bench.shadows.desire(OPERATOR, "d1", "config", document)
    await report(bench, seen=1, applied=1)
    await bench.shadows.linked()
    assert [one.clear for _, _, one in bench.down.documents] == [False, True, True]


async def test_an_older_generation_never_follows_a_newer_one(bench: Bench) -> None:
    """The broker keeps the last that it gets."""
    await bench.device()
    await bench.shadows._send("d1", "config", Desired(gen=2, document={}))
    await bench.shadows._send("d1", "config", Desired(gen=1, document={}))
    assert [one.gen for _, _, one in bench.down.documents] == [2]


async def test_a_device_that_has_seen_more_than_the_database_knows_gets_a_generation_that_it_takes(
    bench: Bench,
) -> None:
    """The database was restored from a backup: without this the device would take nothing for a long time."""
    await bench.device()
    await bench.shadows.desire(OPERATOR, "d1", "config", DOCUMENT)
    await bench.sync(gens={"config": 7})
    assert bench.down.documents[-1][2].gen == 8
    assert bench.down.documents[-1][2].document == DOCUMENT
    assert (await bench.shadows.desire(OPERATOR, "d1", "config", {})).gen == 9


async def test_a_refusal_keeps_what_was_in_force_with_its_reason(bench: Bench) -> None:
    await bench.device()
    await bench.shadows.desire(OPERATOR, "d1", "config", DOCUMENT)
    await report(bench, seen=1, applied=1, document=DOCUMENT)
    await bench.shadows.desire(OPERATOR, "d1", "config", {"bad": 1})
    await report(bench, seen=2, applied=1, state="refused", reason="unknown key bad", document=DOCUMENT)
    view = await bench.shadows.shadow(VIEWER, "d1", "config")
    assert (view.gen, view.seen, view.applied, view.state, view.reason) == (2, 2, 1, "refused", "unknown key bad")
    assert not view.in_sync
    assert view.reported == DOCUMENT


async def test_an_older_report_that_comes_late_changes_nothing(bench: Bench) -> None:
    await bench.device()
    await report(bench, seen=2, applied=2, ep=3)
    await report(bench, seen=1, applied=1, ep=2)
    assert (await bench.shadows.shadow(VIEWER, "d1", "config")).applied == 2


async def test_a_devices_own_edits_are_shown_apart(bench: Bench) -> None:
    await bench.device()
    await report(
        bench, seen=0, applied=0, edits=[{"path": "log.level", "value": "debug", "author": "root", "age_s": 5}]
    )
    (edit,) = (await bench.shadows.shadow(VIEWER, "d1", "config")).edits
    assert (edit["path"], edit["value"], edit["author"]) == ("log.level", "debug", "root")


async def test_models_that_are_reported_are_those_of_the_device(bench: Bench) -> None:
    await bench.device()
    held = ModelState(name="smol", digest="sha256:1", loaded=True)
    await report(bench, "models", seen=1, applied=1, document={"models": [held.model_dump(mode="json")]})
    assert (await bench.registry.device(VIEWER, "d1")).models[0]["name"] == "smol"
    assert await bench.registry.uids(VIEWER, "loaded:smol") == ["d1"]


async def test_many_devices_in_one_transaction_with_a_line_of_the_audit_log_each(bench: Bench) -> None:
    uids = [f"d{n}" for n in range(4)]
    for uid in uids:
        await bench.device(uid)
    await bench.shadows.desire(OPERATOR, "d2", "models", {"models": []})
    gens = await bench.shadows.desire_all(OPERATOR, uids, "models", {"models": [{"name": "m"}]})
    assert gens == {"d0": 1, "d1": 1, "d2": 2, "d3": 1}
    entries = (await AuditService(bench.db).entries(ADMIN, target="d2")).items
    assert [entry.before for entry in entries] == [{"document": {"models": []}}, {"document": None}]
    with pytest.raises(NotFound, match="nobody"):
        await bench.shadows.desire_all(OPERATOR, ["d0", "nobody"], "models", {})
    assert (await bench.shadows.shadow(VIEWER, "d0", "models")).gen == 1


async def test_a_few_documents_of_the_past_are_kept(bench: Bench) -> None:
    await bench.device()
    for number in range(14):
        await bench.shadows.desire(OPERATOR, "d1", "policy", {"n": number})
    past = await bench.shadows.past(VIEWER, "d1", "policy")
    assert [one.gen for one in past] == list(range(13, 3, -1))
    assert past[0].desired == {"n": 12}


async def test_who_may_and_what_is_refused(bench: Bench) -> None:
    await bench.other_tenant()
    await bench.device()
    with pytest.raises(NotPermitted):
        await bench.shadows.desire(VIEWER, "d1", "config", {})
    with pytest.raises(NotFound):
        await bench.shadows.desire(STRANGER, "d1", "config", {})
    with pytest.raises(NotFound):
        await bench.shadows.shadow(STRANGER, "d1", "config")
    with pytest.raises(InvalidRequest, match="no shadow"):
        await bench.shadows.desire(OPERATOR, "d1", "everything", {})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="bytes"):
        await bench.shadows.desire(OPERATOR, "d1", "config", {"x": "y" * 300_000})
    with pytest.raises(InvalidRequest, match="JSON"):
        await bench.shadows.desire(OPERATOR, "d1", "config", {"x": float("nan")})
