"""Alerts over a real database: raised, ended, told once each to real receivers, silent when they should be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
from aiosmtpd.smtp import SMTP
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.alerts.engine import AlertEngine
from edgewise.cloud.fleet.alerts.make import make_alert_engine
from edgewise.cloud.fleet.alerts.rules import DEFAULTS
from edgewise.cloud.fleet.alerts.service import AlertService
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.db.database import FleetDatabase, sqlite_url
from edgewise.cloud.fleet.db.migrate import migrate
from edgewise.cloud.fleet.db.tables import (
    FIRST_TENANT,
    Alert,
    AlertRule,
    AuditRow,
    Device,
    DeviceKey,
    RollupRow,
    ShadowRow,
)
from edgewise.cloud.fleet.registry import DeviceRegistry
from edgewise.core.clock import SystemClock
from edgewise.core.errors import Conflict, InvalidRequest, NotFound, NotPermitted
from edgewise.core.settings import Settings

ME = Actor(tenant=FIRST_TENANT, name="me", role="operator")
BEGAN = 1_800_000_000.0


class SetClock(SystemClock):
    """Its date is set by the test."""

    def __init__(self, now: float) -> None:
        self.now = now

    def time(self) -> float:
        return self.now


@dataclass
class Fleet:
    db: FleetDatabase
    engine: AlertEngine
    service: AlertService
    clock: SetClock
    settings: Settings

    async def device(self, uid: str, **fields: Any) -> None:
        """Make a device, or change its row."""

        def work(session: Session) -> None:
            row = session.get(Device, uid)
            if row is None:
                row = Device(uid=uid, tenant_id=FIRST_TENANT, name=uid, folded=uid, created_at=BEGAN, state="online")
                row.gauges, row.models, row.birth, row.labels = {}, [], {}, {}
                session.add(row)
            for name, value in fields.items():
                setattr(row, name, value)

        await self.db.write(work)

    async def rule(self, condition: dict[str, Any], **fields: Any) -> str:
        made = await self.service.save_rule(ME, {"name": "it", "condition": condition, **fields})
        return made.id

    async def look(self, seconds: float = 0.0) -> list[str]:
        """Messages of open alerts after so much time."""
        self.clock.now += seconds
        await self.engine.tick()
        await self.engine._delivery.deliver(self.clock.time())
        return [alert.message for alert in (await self.service.alerts(ME)).items]

    def again(self) -> None:
        """The service is restarted."""
        registry = DeviceRegistry(self.db, Changes(), cast(Any, None))
        self.engine = make_alert_engine(self.settings, self.db, registry, Changes(), clock=self.clock)


@dataclass
class Inbox:
    """Receivers of alerts; `status` is what the webhook answers."""

    posts: list[dict[str, Any]] = field(default_factory=list)
    mails: list[Any] = field(default_factory=list)
    status: int = 200
    url: str = ""
    smtp: str = ""

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's names
        self.mails.append(envelope)
        return "250 OK"


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    box = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            box.posts.append({"id": self.headers["webhook-id"], **body})
            self.send_response(box.status)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    mail = await asyncio.get_running_loop().create_server(lambda: SMTP(box), "127.0.0.1", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        box.url = f"http://127.0.0.1:{server.server_port}/hook"
        box.smtp = f"smtp://127.0.0.1:{mail.sockets[0].getsockname()[1]}"
        try:
            yield box
        finally:
            mail.close()
            server.shutdown()


@pytest.fixture
async def fleet(tmp_path: Path, inbox: Inbox) -> AsyncIterator[Fleet]:
    db = FleetDatabase(sqlite_url(tmp_path / "fleet.db"))
    await migrate(db)
    settings = Settings.model_validate(
        {
            "home": tmp_path,
            "fleet": {"webhook_hosts": ["http://127.0.0.1"], "smtp_url": inbox.smtp, "mail_from": "fleet@example.org"},
        }
    )
    clock = SetClock(BEGAN)
    registry, changes = DeviceRegistry(db, Changes(), cast(Any, None)), Changes()
    engine = make_alert_engine(settings, db, registry, changes, clock=clock)
    made = Fleet(db, engine, AlertService(db, registry, changes, clock=clock), clock, settings)
    try:
        yield made
    finally:
        await made.engine.stop()
        db.close()


HOT = {"kind": "gauge", "value": "temperature_c", "above": 80, "clear": 75, "for_s": 60}


async def test_an_alert_is_raised_told_once_and_over_when_the_value_is_back(fleet: Fleet, inbox: Inbox) -> None:
    await fleet.device("cam", gauges={"temperature_c": 85.0})
    await fleet.device("pump", gauges={"temperature_c": 50.0})
    await fleet.rule(HOT, deliver=[{"webhook": inbox.url}, {"mail": "ops@example.org"}])
    assert await fleet.look() == []
    assert await fleet.look(60) == ["cam: temperature_c is 85 (above 80)"]
    assert await fleet.look(60) == ["cam: temperature_c is 85 (above 80)"]
    assert [post["type"] for post in inbox.posts] == ["edgewise.alert.raised"]
    assert inbox.posts[0]["data"]["device"] == "cam"
    assert [mail.rcpt_tos for mail in inbox.mails] == [["ops@example.org"]]
    assert b"[warning] cam: it" in inbox.mails[0].content
    await fleet.device("cam", gauges={"temperature_c": 78.0})
    assert len(await fleet.look(60)) == 1  # not back yet
    await fleet.device("cam", gauges={"temperature_c": 74.0})
    assert await fleet.look(5) == []
    assert [post["type"] for post in inbox.posts] == ["edgewise.alert.raised", "edgewise.alert.cleared"]
    assert len(inbox.mails) == 2


async def test_what_was_not_taken_is_sent_again_under_the_same_id(fleet: Fleet, inbox: Inbox) -> None:
    await fleet.device("cam", state="offline")
    inbox.status = 503
    await fleet.rule({"kind": "offline", "for_s": 0}, deliver=[{"webhook": inbox.url}])
    assert await fleet.look() == ["cam: offline for 0 s"]
    await fleet.look(1)
    assert len(inbox.posts) == 1  # not before it is due
    inbox.status = 204
    await fleet.look(10)
    await fleet.look(1000)
    assert len(inbox.posts) == 2
    assert len({post["id"] for post in inbox.posts}) == 1


async def test_an_open_alert_is_known_after_a_restart_and_not_told_again(fleet: Fleet, inbox: Inbox) -> None:
    await fleet.device("cam", gauges={"temperature_c": 85.0})
    await fleet.rule({**HOT, "for_s": 0}, deliver=[{"webhook": inbox.url}])
    assert len(await fleet.look()) == 1
    await fleet.engine.stop()
    fleet.again()
    assert len(await fleet.look(10)) == 1
    await fleet.device("cam", gauges={"temperature_c": 60.0})
    assert await fleet.look(10) == []
    assert [post["type"] for post in inbox.posts] == ["edgewise.alert.raised", "edgewise.alert.cleared"]


async def test_a_silenced_rule_raises_and_tells_nobody(fleet: Fleet, inbox: Inbox) -> None:
    await fleet.device("cam", state="offline")
    rule = await fleet.rule({"kind": "offline", "for_s": 0}, deliver=[{"webhook": inbox.url}])
    assert (await fleet.service.silence(ME, rule, 3600)).silenced_until == BEGAN + 3600
    assert len(await fleet.look()) == 1
    await fleet.device("cam", state="online")
    assert await fleet.look(10) == []
    assert inbox.posts == []


async def test_an_alert_ends_with_its_rule_its_query_and_its_device(fleet: Fleet) -> None:
    for uid in ("a", "b", "c"):
        await fleet.device(uid, state="offline")
    rule = await fleet.rule({"kind": "offline", "for_s": 0}, query="uid:a OR uid:b")
    assert len(await fleet.look()) == 2
    await fleet.device("a", retired_at=BEGAN)
    assert len(await fleet.look()) == 1
    await fleet.service.save_rule(ME, {"id": rule, "name": "it", "condition": {"kind": "offline"}, "enabled": False})
    assert await fleet.look() == []


async def test_readings_of_every_kind(fleet: Fleet) -> None:
    await fleet.device("d", gauges={"memory_used": 9.0, "memory_total": 10.0})

    def fill(session: Session) -> None:
        minute, hour = int(fleet.clock.time()) // 60 * 60 - 120, int(fleet.clock.time()) // 3600 * 3600
        for name, total in (("requests_failed", 5.0), ("requests_ok", 95.0), ("ttft_p95_ms", 300.0)):
            session.add(RollupRow(uid="d", name=name, span_s=60, at=minute, count=1, total=total, least=0, most=total))
        for back in range(2, 40):
            at = hour - back * 3600
            session.add(
                RollupRow(uid="d", name="ttft_p95_ms", span_s=3600, at=at, count=2, total=400.0, least=0, most=1)
            )
        session.add(
            DeviceKey(
                **{"id": "k" * 26, "tenant_id": FIRST_TENANT, "uid": "d", "state": "active", "csr": "", "facts": {}},
                **{"fingerprint": "f", "created_at": BEGAN, "changed_at": BEGAN, "expires_at": BEGAN + 5 * 86_400},
            )
        )
        session.add(ShadowRow(uid="d", shadow="config", gen=2, applied=1, edits=[]))

    await fleet.db.write(fill)
    conditions: list[dict[str, Any]] = [
        {"kind": "gauge", "value": "memory_used", "of": "memory_total", "above": 0.8},
        {"kind": "share", "value": "requests_failed", "among": ["requests_ok", "requests_failed"], "above": 0.01},
        {"kind": "rise", "value": "ttft_p95_ms", "above": 1.2},
        {"kind": "certificate", "below_days": 14},
        {"kind": "out-of-sync"},
    ]
    for index, condition in enumerate(conditions):
        held = {} if condition["kind"] == "certificate" else {"for_s": 0}
        await fleet.service.save_rule(ME, {"name": f"r{index}", "condition": {**condition, **held}})
    assert sorted(await fleet.look()) == [
        "d: its certificate ends in 5.0 days",
        "d: memory_used / memory_total is 0.9 (above 0.8)",
        "d: requests_failed is 0.05 (above 0.01)",
        "d: ttft_p95_ms is 1.50 times its usual value (above 1.2)",
        "d: what is desired is not in force",
    ]


async def test_the_defaults_tell_of_fragmentation_and_of_a_slower_99th_percentile(fleet: Fleet) -> None:
    await fleet.service.add_defaults(ME)
    await fleet.device("d", gauges={"kv_fragmentation": 0.16})

    def fill(session: Session) -> None:
        began, hour = int(fleet.clock.time()) // 60 * 60, int(fleet.clock.time()) // 3600 * 3600
        minutes = [(60, began + 60 * n, 121.0) for n in range(-2, 10)]
        hours = [(3600, hour - 3600 * n, 100.0) for n in range(2, 40)]
        for name in ("ttft_p99_ms", "itl_p99_ms"):
            for span, at, total in (*minutes, *hours):
                session.add(RollupRow(uid="d", name=name, span_s=span, at=at, count=1, total=total, least=0, most=1))

    await fleet.db.write(fill)
    assert await fleet.look() == []
    assert await fleet.look(300) == ["d: kv_fragmentation is 0.16 (above 0.15)"]
    assert sorted(await fleet.look(300)) == [
        "d: itl_p99_ms is 1.21 times its usual value (above 1.2)",
        "d: kv_fragmentation is 0.16 (above 0.15)",
        "d: ttft_p99_ms is 1.21 times its usual value (above 1.2)",
    ]


async def test_people_and_rules(fleet: Fleet) -> None:
    viewer = Actor(tenant=FIRST_TENANT, name="v")
    assert await fleet.service.add_defaults(ME) == len(DEFAULTS)
    assert await fleet.service.add_defaults(ME) == 0
    assert len(await fleet.service.rules(viewer)) == len(DEFAULTS)
    with pytest.raises(NotPermitted):
        await fleet.service.silence(viewer, "x", 1)
    with pytest.raises(Conflict):
        await fleet.rule({"kind": "offline"}, name="hot")
    with pytest.raises(InvalidRequest):
        await fleet.rule({"kind": "offline"}, query="((")
    with pytest.raises(NotFound):
        await fleet.service.silence(
            Actor(tenant="other", name="o", role="admin"), (await fleet.service.rules(ME))[0].id, 1
        )
    await fleet.device("cam", state="offline")
    await fleet.look()
    (alert,) = (await fleet.service.alerts(ME)).items if await fleet.look(60) else ()
    assert (await fleet.service.acknowledge(ME, alert.id)).acknowledged_by == "me"
    await fleet.service.delete_rule(ME, alert.rule_id)
    assert await fleet.db.read(lambda session: list(session.scalars(select(Alert)))) == []
    actions = await fleet.db.read(lambda session: list(session.scalars(select(AuditRow.action))))
    assert actions == ["alert-rule.defaults", "alert.acknowledge", "alert-rule.delete"]


async def test_a_rule_of_a_later_release_keeps_no_other_from_being_looked_at(fleet: Fleet) -> None:
    """It is in the database after an upgrade was taken back."""
    await fleet.device("cam", state="offline")
    strange = await fleet.rule({"kind": "offline", "for_s": 0}, name="strange")
    await fleet.rule({"kind": "offline", "for_s": 0}, name="plain")

    def work(session: Session) -> None:
        session.get_one(AlertRule, strange).condition = {"kind": "of a later release"}

    await fleet.db.write(work)
    assert await fleet.look() == ["cam: offline for 0 s"]
