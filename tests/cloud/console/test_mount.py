"""The console as part of an application in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import httpx
import pytest
from fastapi import FastAPI
from nicegui import Client

from edgewise.cloud.console import visit
from edgewise.cloud.console.app import mount_console
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.api.app import add_api
from edgewise.core.settings_fleet import FleetSettings
from tests.fakes.fleet_people import PASSWORD
from tests.fakes.fleet_services import FakeFleet


def make_app(fake: FakeFleet) -> FastAPI:
    app, settings = FastAPI(), FleetSettings()
    add_api(app, fake.fleet, settings)
    mount_console(app, fake.fleet, settings)
    return app


async def test_a_second_service_in_one_process_has_a_console_of_its_own() -> None:
    for count in (1, 2):
        fake = FakeFleet(count)
        app = make_app(fake)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fleet") as client,
        ):
            token = await fake.people.login("ada", PASSWORD, "")
            client.cookies.set("edgewise_session", token)
            page = await client.get("/", headers={"accept": "text/html"})
            assert page.status_code == 200
            assert f"{count} device" in page.text
            assert (await client.get("/fleet/v1/whoami")).json()["name"] == "ada"
            assert (await client.get("/no-such-page", headers={"accept": "text/html"})).status_code == 404


async def test_what_changes_while_a_page_is_built_is_seen() -> None:
    fake = FakeFleet(1)
    uid = next(iter(fake.devices.devices))
    counts, asked = fake.devices.counts, []

    async def changed_meanwhile(actor: Actor, query: str = "") -> Mapping[str, int]:
        found = await counts(actor, query)
        asked.append(found)
        if len(asked) == 1:
            fake.devices.set_state(uid, "draining")
        return found

    fake.devices.counts = changed_meanwhile  # type: ignore[method-assign]
    app = make_app(fake)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fleet") as client,
    ):
        client.cookies.set("edgewise_session", await fake.people.login("ada", PASSWORD, ""))
        await client.get("/", headers={"accept": "text/html"})
        deadline = time.monotonic() + 30
        while len(asked) < 2:
            assert time.monotonic() < deadline, "the page missed the change"
            await asyncio.sleep(0.02)
    assert asked[-1] == {"draining": 1}


async def test_a_page_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "_SESSION_CHECK_S", 0.05)
    monkeypatch.setattr(visit, "_LEAVE_S", 0.05)
    fake = FakeFleet(1)
    app = make_app(fake)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fleet") as client,
    ):
        token = await fake.people.login("ada", PASSWORD, "")
        client.cookies.set("edgewise_session", token)
        before = set(Client.instances)
        await client.get("/", headers={"accept": "text/html"})
        page = Client.instances[(set(Client.instances) - before).pop()]
        await asyncio.sleep(0.3)
        assert not page.is_deleted
        await fake.people.logout(token)
        deadline = time.monotonic() + 30
        while not page.is_deleted:
            assert time.monotonic() < deadline, "the page outlived its session"
            await asyncio.sleep(0.02)


async def test_an_action_is_written_down_with_where_it_came_from() -> None:
    seen: list[Actor] = []
    fake = FakeFleet(3)

    async def counts(actor: Actor, query: str = "") -> dict[str, int]:
        seen.append(actor)
        return {}

    fake.devices.counts = counts  # type: ignore[method-assign]
    app = make_app(fake)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app, client=("10.0.0.9", 1)), base_url="http://fleet"
        ) as client,
    ):
        client.cookies.set("edgewise_session", await fake.people.login("olu", PASSWORD, ""))
        await client.get("/", headers={"accept": "text/html"})
    assert [(actor.name, actor.via) for actor in seen] == [("olu", "console 10.0.0.9")]
