"""The REST API: who gets in, what a refusal looks like, streams; on real people and doubles of the other services."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from argon2.profiles import CHEAPEST
from fastapi import FastAPI

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.api.app import add_api
from edgewise.cloud.fleet.api.auth import csrf_token
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.people.service import PeopleService
from edgewise.cloud.fleet.services import Fleet
from edgewise.core.errors import LinkLost
from edgewise.core.settings_fleet import FleetSettings
from edgewise.wire.fleet import Ack
from tests.api.harness import until
from tests.cloud.fleet.bench import ADMIN, empty
from tests.cloud.fleet_trust.doubles import Recorder, StreamingCommands, make_fleet, served
from tests.e2e.postgres import PostgresServer

PASSWORD = "correct horse"
OPENID = {"/fleet/v1/openid/login", "/fleet/v1/openid/callback"}
OPEN = {"/fleet/v1/login", *OPENID, *(f"/fleet/v1/enrol{rest}" for rest in ("", "/status", "/challenge", "/renew"))}
DEVICES: dict[str, Any] = {"items": (), "total": 0}


def make_app(fleet: Fleet, **settings: Any) -> FastAPI:
    app = FastAPI()
    app.state.closing = add_api(app, fleet, FleetSettings(**settings)).closing
    return app


def client_of(app: FastAPI, base: str = "http://127.0.0.1", **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, client=("10.1.2.3", 5))
    return httpx.AsyncClient(transport=transport, base_url=base, headers=headers)


@pytest.fixture
def db(sqlite_db: FleetDatabase) -> FleetDatabase:
    return sqlite_db


@pytest.fixture
async def api(people: PeopleService, admin: Actor) -> AsyncIterator[httpx.AsyncClient]:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    async with client_of(make_app(make_fleet(people, registry=Recorder(devices=DEVICES)))) as client:
        yield client


def code_of(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


def routes() -> list[tuple[str, str]]:
    app = make_app(make_fleet(None))  # type: ignore[arg-type]
    return [(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods]


async def test_nobody_gets_anything(api: httpx.AsyncClient) -> None:
    """Without credentials, or with wrong ones of any kind, every route refuses; those of enrolment look at their body."""
    assert len(routes()) > 40
    for method, path in routes():
        for headers in ({}, {"authorization": "Bearer ewt_000000000000_" + "A" * 43}, {"cookie": "edgewise_session=x"}):
            body: dict[str, Any] | None = {} if method in ("POST", "PUT", "PATCH") else None
            response = await api.request(method, path, headers=headers, json=body)
            assert response.status_code == (404 if path in OPENID else 400 if path in OPEN else 401), (method, path)


async def test_a_cookie_changes_nothing_without_its_csrf_token(api: httpx.AsyncClient) -> None:
    await api.post("/fleet/v1/login", json={"name": "ada", "password": PASSWORD})
    for method, path in routes():
        if method == "GET" or path in OPEN:
            continue
        for token in ("", "0" * 64, csrf_token("ews_another")):
            response = await api.request(method, path, headers={"x-csrf-token": token}, json={})
            assert response.status_code == 403, (method, path)
            assert "x-csrf-token" in response.json()["error"]["message"]


async def test_login_by_cookie(api: httpx.AsyncClient) -> None:
    response = await api.post("/fleet/v1/login", json={"name": "ada", "password": PASSWORD})
    who = response.json()
    assert (who["name"], who["role"], who["token"]) == ("ada", "admin", None)
    cookie = response.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=lax", "Path=/"))
    assert (await api.get("/fleet/v1/devices")).status_code == 200
    assert (await api.get("/fleet/v1/whoami")).json()["csrf"] == who["csrf"]
    assert (await api.post("/fleet/v1/logout", headers={"x-csrf-token": who["csrf"]})).status_code == 204
    assert (await api.get("/fleet/v1/devices")).status_code == 401


async def test_over_tls_the_cookie_is_bound_to_the_host(people: PeopleService, admin: Actor) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    for app, base in (
        (make_app(make_fleet(people)), "https://fleet.example"),
        (make_app(make_fleet(people), public_url="https://fleet.example"), "http://127.0.0.1"),  # behind a proxy
    ):
        async with client_of(app, base) as client:
            cookie = (await client.post("/fleet/v1/login", json={"name": "ada", "password": PASSWORD})).headers[
                "set-cookie"
            ]
            assert cookie.startswith("__Host-edgewise_session=")
            assert "Secure" in cookie


async def test_login_as_bearer_needs_no_csrf(api: httpx.AsyncClient) -> None:
    response = await api.post("/fleet/v1/login", json={"name": "ada", "password": PASSWORD, "cookie": False})
    assert "set-cookie" not in response.headers
    bearer = {"authorization": f"Bearer {response.json()['token']}"}
    assert (await api.get("/fleet/v1/users", headers=bearer)).json()[0]["name"] == "ada"
    assert (await api.post("/fleet/v1/logout", headers=bearer)).status_code == 204
    assert (await api.get("/fleet/v1/users", headers=bearer)).status_code == 401


async def test_api_tokens_call_with_their_role(api: httpx.AsyncClient, people: PeopleService, admin: Actor) -> None:
    made = await people.add_token(admin, "ci", "viewer", None)
    bearer = {"authorization": f"Bearer {made.token}"}
    assert (await api.get("/fleet/v1/whoami", headers=bearer)).json()["name"] == "token:ci"
    refused = await api.get("/fleet/v1/users", headers=bearer)
    assert (refused.status_code, code_of(refused)) == (403, "permission_denied")


async def test_wrong_passwords_are_limited(api: httpx.AsyncClient) -> None:
    for _ in range(3):
        response = await api.post("/fleet/v1/login", json={"name": "ada", "password": "wrong"})
        assert (response.status_code, code_of(response)) == (401, "invalid_api_key")
    response = await api.post("/fleet/v1/login", json={"name": "ada", "password": PASSWORD})
    assert (response.status_code, code_of(response)) == (429, "too_many_tries")
    assert int(response.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"password": "x"}, "missing_required_parameter", "name"),
        ({"name": "a", "password": "x", "remember": True}, "unknown_parameter", "remember"),
        ({"name": 5, "password": "x"}, "invalid_value", "name"),
        ({"name": "a" * 200, "password": "x"}, "invalid_value", "name"),
    ],
)
async def test_bad_bodies_are_named(api: httpx.AsyncClient, body: dict[str, Any], code: str, param: str) -> None:
    response = await api.post("/fleet/v1/login", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)


async def test_bodies_are_json_within_limits(api: httpx.AsyncClient) -> None:
    url = "/fleet/v1/login"
    json_type = {"content-type": "application/json"}
    assert (await api.post(url, content=b"name=ada", headers={"content-type": "text/plain"})).status_code == 415
    assert code_of(await api.post(url, content=b"{", headers=json_type)) == "invalid_json"
    assert code_of(await api.post(url, content=b'{"name": NaN}', headers=json_type)) == "invalid_json"
    assert (await api.post(url, content=b'{"name": "' + b"a" * 3_000_000, headers=json_type)).status_code == 413


async def test_security_headers(api: httpx.AsyncClient) -> None:
    headers = (await api.get("/fleet/v1/devices")).headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-request-id"].startswith("req_")
    assert "frame-ancestors 'none'" in (await api.get("/")).headers["content-security-policy"]


async def test_the_actor_says_from_where(people: PeopleService, admin: Actor) -> None:
    made = await people.add_token(admin, "ci", "viewer", None)
    registry = Recorder(devices=DEVICES)
    app = make_app(make_fleet(people, registry=registry))
    for agent, via in (("edgewise-cli/0.1", "cli 10.1.2.3"), ("curl/8", "api 10.1.2.3")):
        async with client_of(app, **{"authorization": f"Bearer {made.token}", "user-agent": agent}) as client:
            await client.get("/fleet/v1/devices", params={"query": "site:lyon", "limit": 7})
        name, (actor, query), options = registry.calls.pop()
        assert (name, query, options["limit"]) == ("devices", "site:lyon", 7)
        assert (actor.tenant, actor.via) == (admin.tenant, via)


async def test_a_command_names_its_devices_once(people: PeopleService, admin: Actor) -> None:
    token = (await people.add_token(admin, "ci", "operator", None)).token
    commands, registry = StreamingCommands([]), Recorder(uids=["d1", "d2"])
    app = make_app(make_fleet(people, commands=commands, registry=registry))
    async with client_of(app, authorization=f"Bearer {token}") as client:
        both = await client.post("/fleet/v1/commands", json={"op": "ping", "uids": ["d1"], "query": "x"})
        assert (both.status_code, both.json()["error"]["param"]) == (400, "uids")
        assert (await client.post("/fleet/v1/commands", json={"op": "ping"})).status_code == 400
        assert (await client.post("/fleet/v1/commands", json={"op": "ping", "query": "site:lyon"})).status_code == 202
    assert commands.calls[0][1][1:3] == (("d1", "d2"), "ping")


async def test_acks_are_streamed(people: PeopleService, admin: Actor) -> None:
    token = (await people.add_token(admin, "ci", "viewer", None)).token
    acks = [Ack(state="running", offset=0, text="Hel"), Ack(state="running", offset=1, text="lo")]
    app = make_app(make_fleet(people, commands=StreamingCommands(acks, LinkLost("The broker is away."))))
    async with client_of(app, authorization=f"Bearer {token}") as client:
        response = await client.get("/fleet/v1/commands/x/stream")
    events = [event for event in response.text.split("\n\n") if event.startswith("event")]
    assert [json.loads(event.partition("data: ")[2]).get("text") for event in events[:2]] == ["Hel", "lo"]
    assert events[2].startswith("event: error")
    assert "link_lost" in events[2]


async def test_changes_are_streamed_until_the_service_closes(people: PeopleService, admin: Actor) -> None:
    """Over a real connection. The stream ends only because `closing` is set; changes of others do not show."""
    token = (await people.add_token(admin, "ci", "viewer", None)).token
    changes = Changes()
    app = make_app(make_fleet(people, changes=changes))
    seen = []
    async with served(app) as base, httpx.AsyncClient(base_url=base) as client:
        asked = client.stream("GET", "/fleet/v1/changes", headers={"authorization": f"Bearer {token}"})
        async with asked as response:
            async for line in response.aiter_lines():
                seen.append(line)
                if line == ": keep-alive" and len(seen) == 1:
                    await until(lambda: changes._subscriptions, seconds=60)
                    changes.publish(Change("another", "device", "hidden"), Change(admin.tenant, "device", "d1"))
                if line.startswith("data"):
                    app.state.closing.set()
    assert [line for line in seen if line and not line.startswith(":")] == [
        "event: change",
        'data: {"kind":"device","id":"d1"}',
    ]
    assert not changes._subscriptions


async def test_every_route_is_described(api: httpx.AsyncClient) -> None:
    """Each has an answer with a schema, and says how to authenticate unless it needs none."""
    app = make_app(make_fleet(None))  # type: ignore[arg-type]
    for path, methods in app.openapi()["paths"].items():
        for route in methods.values():
            assert ("security" in route) == (path not in OPEN), path
            assert {"4XX", "5XX"} < set(route["responses"]), path
            assert "422" not in route["responses"], path
            answer = next(answer for status, answer in route["responses"].items() if status[0] in "23")
            contents = answer.get("content", {})
            for kind, content in contents.items():
                assert kind != "application/json" or content["schema"], path


async def test_a_database_that_is_killed_is_503_until_it_is_back(postgres: PostgresServer, migrated_url: str) -> None:
    db = FleetDatabase(migrated_url)
    empty(db)
    people = PeopleService(db, Changes(), FleetSettings(), hashing=CHEAPEST)
    await people.add_user(ADMIN, "ada", PASSWORD, "admin")
    login = {"name": "ada", "password": PASSWORD, "cookie": False}
    try:
        async with client_of(make_app(make_fleet(people, registry=Recorder(devices=DEVICES)))) as client:
            token = (await client.post("/fleet/v1/login", json=login)).json()["token"]
            client.headers["authorization"] = f"Bearer {token}"
            assert (await client.get("/fleet/v1/devices")).status_code == 200
            postgres.kill()
            try:
                for _ in range(2):  # over a connection that broke, and when none can be made
                    for response in (
                        await client.get("/fleet/v1/devices"),
                        await client.post("/fleet/v1/login", json=login),
                    ):
                        assert (response.status_code, code_of(response)) == (503, "database_unavailable")
                        assert int(response.headers["retry-after"]) >= 1
            finally:
                postgres.start()
            assert (await client.get("/fleet/v1/devices")).status_code == 200
    finally:
        people.close()
        db.close()
