"""Logins at an OpenID provider that runs beside the test."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import ECKey

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.people.openid import OpenId
from edgewise.cloud.fleet.people.service import PeopleService
from edgewise.core.errors import ConfigError
from edgewise.core.settings_fleet import FleetSettings
from tests.cloud.fleet_trust.doubles import make_fleet
from tests.cloud.fleet_trust.provider import CLIENT, SECRET, Provider, running_provider
from tests.cloud.fleet_trust.test_api import client_of, code_of, make_app

BEGIN = "/fleet/v1/openid/login"


@pytest.fixture
def db(sqlite_db: FleetDatabase) -> FleetDatabase:
    return sqlite_db


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with running_provider() as running:
        yield running


@pytest.fixture
async def browser(people: PeopleService, provider: Provider, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    settings = {"oidc_issuer": provider.url, "oidc_client_id": CLIENT, "oidc_secret_file": secret}
    async with client_of(make_app(make_fleet(people), **settings)) as client:
        yield client


async def log_in(browser: httpx.AsyncClient, begun: httpx.Response | None = None) -> httpx.Response:
    """There and back; the answer to the callback."""
    begun = begun or await browser.get(BEGIN)
    assert begun.status_code == 303, begun.text
    async with httpx.AsyncClient(trust_env=False) as outside:
        back = await outside.get(begun.headers["location"])
    assert back.status_code == 303, back.text
    return await browser.get(back.headers["location"])


async def test_a_person_without_a_password_logs_in(
    browser: httpx.AsyncClient, people: PeopleService, admin: Actor
) -> None:
    await people.add_user(admin, "ada@example.org", None, "operator")
    done = await log_in(browser)
    assert (done.status_code, done.headers["location"]) == (303, "/")
    who = (await browser.get("/fleet/v1/whoami")).json()
    assert (who["name"], who["role"]) == ("ada@example.org", "operator")


async def test_the_subject_counts_once_it_is_known(
    browser: httpx.AsyncClient, provider: Provider, people: PeopleService, admin: Actor
) -> None:
    """Mail addresses change hands; who was bound to an account stays, and nobody else gets it."""
    await people.add_user(admin, "ada@example.org", None, "operator")
    await log_in(browser)
    provider.person = {"sub": "42", "email": "ada.married@example.org", "email_verified": True}
    assert (await log_in(browser)).status_code == 303
    provider.person = {"sub": "77", "email": "ada@example.org", "email_verified": True}
    assert code_of(await log_in(browser)) == "permission_denied"


@pytest.mark.parametrize(
    "person",
    [
        {"sub": "42", "email": "other@example.org", "email_verified": True},
        {"sub": "42", "email": "ada@example.org", "email_verified": False},
        {"sub": "42", "email": "ada@example.org"},
        {"sub": "42"},
        {"sub": "42", "email": "bob", "email_verified": True},
    ],
)
async def test_nobody_else_gets_in(
    browser: httpx.AsyncClient, provider: Provider, people: PeopleService, admin: Actor, person: dict[str, Any]
) -> None:
    """Not without an account, with an address that was not verified, nor with the name of somebody who has a password."""
    await people.add_user(admin, "ada@example.org", None, "operator")
    await people.add_user(admin, "bob", "correct horse", "admin")
    provider.person = person
    assert code_of(await log_in(browser)) == "permission_denied"
    assert (await browser.get("/fleet/v1/whoami")).status_code == 401


@pytest.mark.parametrize(
    "lie",
    [
        {"nonce": "another"},
        {"aud": "another"},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"iss": "https://another.example"},
        {"exp": int(time.time()) - 600},
        {"sub": None},
    ],
    ids=lambda lie: next(iter(lie)),
)
async def test_what_does_not_hold_is_refused(
    browser: httpx.AsyncClient, provider: Provider, people: PeopleService, admin: Actor, lie: dict[str, Any]
) -> None:
    await people.add_user(admin, "ada@example.org", None, "operator")
    provider.lies = lie
    assert (await log_in(browser)).status_code == 401


async def test_a_strange_key_is_refused_and_a_new_one_is_learnt(
    browser: httpx.AsyncClient, provider: Provider, people: PeopleService, admin: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await people.add_user(admin, "ada@example.org", None, "operator")
    assert (await log_in(browser)).status_code == 303
    provider.key = ECKey.generate_key("P-256", {"kid": "1", "use": "sig"})  # the provider's own new key
    assert (await log_in(browser)).status_code == 303
    thief = ECKey.generate_key("P-256", {"kid": "1", "use": "sig"})
    true = provider.token
    monkeypatch.setattr(provider, "token", lambda nonce: Provider(url=provider.url, key=thief).token(nonce))
    assert (await log_in(browser)).status_code == 401
    monkeypatch.setattr(provider, "token", true)


async def test_a_login_ends_in_the_browser_that_began_it(
    browser: httpx.AsyncClient, people: PeopleService, admin: Actor
) -> None:
    await people.add_user(admin, "ada@example.org", None, "operator")
    begun = await browser.get(BEGIN)
    browser.cookies.clear()
    assert code_of(await log_in(browser, begun)) == "invalid_value"
    await browser.get(BEGIN)  # has a cookie, of another login
    assert code_of(await log_in(browser, begun)) == "invalid_value"


async def test_a_code_is_used_once(browser: httpx.AsyncClient, people: PeopleService, admin: Actor) -> None:
    await people.add_user(admin, "ada@example.org", None, "operator")
    begun = await browser.get(BEGIN)
    async with httpx.AsyncClient(trust_env=False) as outside:
        back = (await outside.get(begun.headers["location"])).headers["location"]
    cookie = browser.cookies.get("edgewise_openid")
    assert cookie is not None
    assert (await browser.get(back)).status_code == 303
    browser.cookies.set("edgewise_openid", cookie)
    assert (await browser.get(back)).status_code == 401


async def test_the_providers_own_refusal_is_told(browser: httpx.AsyncClient) -> None:
    refused = await browser.get("/fleet/v1/openid/callback?error=access_denied&error_description=Not+today")
    assert refused.status_code == 401
    assert "Not today" in refused.json()["error"]["message"]


async def test_a_provider_that_is_away(people: PeopleService) -> None:
    app = make_app(make_fleet(people), oidc_issuer="http://127.0.0.1:9", oidc_client_id=CLIENT)
    async with client_of(app) as browser:
        assert code_of(await browser.get(BEGIN)) == "link_lost"
    with pytest.raises(ConfigError, match="oidc_client_id"):
        OpenId(FleetSettings(oidc_issuer="https://id.example"))
