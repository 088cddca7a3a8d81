"""Two tenants on one service: every route of the API, called by an admin of one with the names of the other's things."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.api.app import add_api
from edgewise.cloud.fleet.app import FleetService
from edgewise.cloud.fleet.db.migrate import migrate
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, Alert, DeviceKey
from edgewise.cloud.fleet.people.service import ensure_tenant
from edgewise.cloud.fleet.registry import add_device
from edgewise.core.settings import load_settings
from edgewise.wire.envelope import new_ulid
from scripts.service import free_port
from tests.cloud.fleet_trust.test_api import client_of

OURS = Actor(tenant=FIRST_TENANT, name="ada", role="admin")
BODIES: dict[tuple[str, str], Any] = {
    ("patch", "/fleet/v1/devices/{uid}"): {"name": "stolen"},
    ("put", "/fleet/v1/devices/{uid}/shadows/{shadow}"): {"document": {"log.level": "debug"}},
    ("put", "/fleet/v1/groups"): {"name": "theirs", "query": ""},
    ("post", "/fleet/v1/rules/{rule_id}/silence"): {"seconds": 60},
    ("patch", "/fleet/v1/users/{name}"): {"role": "viewer"},
    ("post", "/fleet/v1/users"): {"name": "new", "password": "correct horse"},
    ("post", "/fleet/v1/tokens"): {"name": "new"},
    ("post", "/fleet/v1/codes"): {},
    ("put", "/fleet/v1/whoami/password"): {"old": "correct horse", "new": "correct horse 2"},
}
QUERIES = {"/fleet/v1/devices/{uid}/telemetry/{name}": {"since": 0}}
ANYBODY = ("/fleet/v1/login", "/fleet/v1/enrol", "/fleet/v1/openid", "/fleet/v1/logout", "/fleet/v1/whoami")


@dataclass
class Tenants:
    service: FleetService
    app: FastAPI
    ids: dict[str, str]
    """Of things of the first tenant, by the name of the path's parameter."""
    token: str
    """Of an admin of the other tenant."""


@pytest.fixture
async def tenants(tmp_path: Path) -> AsyncIterator[Tenants]:
    loaded = load_settings(None, {"home": str(tmp_path), "mqtt.port": free_port()}, environ={}).settings
    service = FleetService(loaded)
    await migrate(service.db)
    fleet, db = service.fleet, service.db
    other = await db.write(lambda session: ensure_tenant(session, "other", now=0.0))
    await db.write(lambda session: add_device(session, FIRST_TENANT, "secret-device", name="Secret press") and None)
    (command,) = await fleet.commands.send(OURS, ["secret-device"], "ping", {"secret": "argument"})
    rollout = await fleet.rollouts.create(OURS, "secret rollout", "config", {"log.level": "debug"}, "", {})
    rule = await fleet.alerts.save_rule(OURS, {"name": "secret rule", "condition": {"kind": "offline"}})
    await fleet.people.add_user(OURS, "secret-user", "correct horse", "admin")
    key, alert = new_ulid(), new_ulid()
    await db.write(
        lambda session: session.add_all(
            [
                DeviceKey(
                    id=key, tenant_id=FIRST_TENANT, uid="secret-device", state="pending", csr="", fingerprint="0" * 64,
                    facts={}, created_at=0.0, changed_at=0.0,
                ),
                Alert(
                    id=alert, tenant_id=FIRST_TENANT, rule_id=rule.id, uid="secret-device", severity="warning",
                    message="secret alert", raised_at=0.0, delivered=[],
                ),
            ]
        )
    )  # fmt: skip
    made = await fleet.people.add_token(Actor(tenant=other, name="eve", role="admin"), "eve", "admin", None)
    assert made.token is not None
    ids = {
        "uid": "secret-device",
        "shadow": "config",
        "command_id": command.id,
        "rollout_id": rollout.id,
        "rule_id": rule.id,
        "alert_id": alert,
        "key_id": key,
        "group_id": (await fleet.registry.save_group(OURS, "secret-group", "")).id,
        "token_id": (await fleet.people.add_token(OURS, "secret-token", "viewer", None)).id,
        "code_id": (await fleet.enrolment.add_code(OURS)).id,
        "name": "secret-user",
        "what": "",
    }
    app = FastAPI()
    add_api(app, fleet, loaded.fleet)
    try:
        yield Tenants(service, app, ids, made.token)
    finally:
        await service.stop()


async def test_nothing_of_another_tenant_is_seen_or_changed(tenants: Tenants) -> None:
    before = await state_of(tenants)
    seen = 0
    async with client_of(tenants.app, authorization=f"Bearer {tenants.token}") as eve:
        for path, methods in tenants.app.openapi()["paths"].items():
            for method, route in methods.items():
                if path.startswith(ANYBODY) or path in (
                    "/fleet/v1/changes",
                    "/fleet/v1/commands",
                    "/fleet/v1/rollouts",
                    "/fleet/v1/rules",
                ):
                    continue
                for url in urls(path, route, tenants.ids):
                    response = await eve.request(method, url, json=BODIES.get((method, path)), params=QUERIES.get(path))
                    assert response.status_code == (404 if "{" in path else 200 if method != "post" else 201), (
                        url,
                        response.text,
                    )
                    check_silent(response, tenants.ids, url)
                    seen += 1
        for url in ("commands", "rollouts", "rules", "commands?uid=secret-device", "keys?uid=secret-device"):
            check_silent(await eve.get(f"/fleet/v1/{url}"), tenants.ids, "")
        sent = await eve.post("/fleet/v1/commands", json={"op": "restart", "uids": ["secret-device"]})
        assert sent.status_code == 404
        assert (await eve.post("/fleet/v1/commands", json={"op": "restart", "query": ""})).status_code == 404
        assert (await eve.post("/fleet/v1/codes", json={"uid": "secret-device"})).status_code == 404
    assert seen > 40
    assert await state_of(tenants) == before


def urls(path: str, route: dict[str, Any], ids: dict[str, str]) -> list[str]:
    """The path with the other tenant's names; one for each value of a choice."""
    choice: list[str] = next((p["schema"]["enum"] for p in route.get("parameters", ()) if p["name"] == "what"), [""])
    return [path.format(**{**ids, "what": what}) for what in choice]


def check_silent(response: httpx.Response, ids: dict[str, str], asked: str) -> None:
    """The answer names nothing that was not in the question."""
    for name in (
        "Secret press",
        "secret rollout",
        "secret rule",
        "secret alert",
        "secret-group",
        "argument",
        *ids.values(),
    ):
        if name and name != "config" and name not in asked:
            assert name not in response.text, (response.url, name)


async def state_of(tenants: Tenants) -> str:
    """All that an admin of the first tenant sees."""
    fleet = tenants.service.fleet
    seen = [
        await fleet.registry.device(OURS, "secret-device"),
        await fleet.registry.groups(OURS),
        (await fleet.commands.commands(OURS)).items,
        (await fleet.rollouts.rollouts(OURS)).items,
        await fleet.alerts.rules(OURS),
        (await fleet.alerts.alerts(OURS, open_only=False)).items,
        await fleet.people.users(OURS),
        await fleet.people.tokens(OURS),
        await fleet.enrolment.codes(OURS),
        await fleet.enrolment.keys(OURS),
        (await fleet.audit.entries(OURS)).items,
    ]
    return json.dumps([str(part) for part in seen])
