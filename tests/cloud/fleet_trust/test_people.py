"""Logins, users and tokens on a real database."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from argon2.profiles import CHEAPEST
from sqlalchemy import select

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import AuditRow, Base, LoginSession, LoginTry, User
from edgewise.cloud.fleet.people.service import PeopleService
from edgewise.cloud.fleet.people.tries import WINDOW_S, network_of
from edgewise.cloud.fleet.telemetry.keeper import TelemetryKeeper
from edgewise.core.clock import FakeClock
from edgewise.core.errors import InvalidRequest, NotAuthenticated, NotFound, NotPermitted, RateLimited
from edgewise.core.settings_fleet import FleetSettings

PASSWORD = "correct horse"


async def test_a_login_names_the_user_until_it_ends(people: PeopleService, admin: Actor, clock: FakeClock) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    token = await people.login("ada", PASSWORD, "10.0.0.1")
    actor = await people.of_session(token)
    assert actor is not None
    assert (actor.tenant, actor.name, actor.role) == (admin.tenant, "ada", "admin")
    await people.logout(token)
    assert await people.of_session(token) is None
    token = await people.login("ada", PASSWORD, "10.0.0.1")
    clock.advance(101.0)
    assert await people.of_session(token) is None


async def test_neither_passwords_nor_tokens_are_stored(people: PeopleService, admin: Actor, db: FleetDatabase) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    token = await people.login("ada", PASSWORD, "10.0.0.1")
    made = await people.add_token(admin, "ci", "viewer", None)
    assert made.token is not None
    rows = await db.read(lambda s: [row for table in Base.metadata.sorted_tables for row in s.execute(table.select())])
    assert len(rows) > 4
    for secret in (PASSWORD, token, made.token):
        assert secret not in str(rows)
    assert str(await db.read(lambda session: session.scalars(select(User.password)).one())).startswith("$argon2id$")


@pytest.mark.parametrize(("name", "password"), [("ada", "wrong password"), ("nobody", PASSWORD), ("ada", "x" * 5000)])
async def test_wrong_logins_look_alike(people: PeopleService, admin: Actor, name: str, password: str) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    with pytest.raises(NotAuthenticated) as refused:
        await people.login(name, password, "10.0.0.1")
    assert refused.value.message == "The name or the password is wrong."


async def test_tries_are_limited_by_name(people: PeopleService, admin: Actor, clock: FakeClock) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    for number in range(3):
        with pytest.raises(NotAuthenticated):
            await people.login("ada", "wrong", f"10.0.0.{number}")
    with pytest.raises(RateLimited) as refused:
        await people.login("ada", PASSWORD, "10.0.0.9")
    assert refused.value.retry_after_s == pytest.approx(WINDOW_S)
    clock.advance(WINDOW_S)
    assert await people.login("ada", PASSWORD, "10.0.0.9")


async def test_tries_are_limited_by_address_and_right_ones_do_not_pay_for_wrong_ones(
    people: PeopleService, admin: Actor
) -> None:
    """Who has an account must not be able to guess others' passwords for ever by logging in in between."""
    await people.add_user(admin, "ada", PASSWORD, "admin")
    for number in range(3):
        assert await people.login("ada", PASSWORD, "10.0.0.1")
        with pytest.raises(NotAuthenticated):
            await people.login(f"victim{number}", "wrong", "10.0.0.1")
    with pytest.raises(RateLimited):
        await people.login("ada", PASSWORD, "10.0.0.1")
    assert await people.login("ada", PASSWORD, "10.0.0.2")


async def test_many_tries_at_once_get_no_more_than_one_by_one(people: PeopleService, admin: Actor) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    tries = (people.login("ada", f"wrong {number}", "10.0.0.1") for number in range(8))
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, NotAuthenticated) for result in results) == 3
    assert sum(isinstance(result, RateLimited) for result in results) == 5


async def test_tries_are_counted_over_a_restart_and_over_all_services_of_a_database(
    people: PeopleService, admin: Actor, clock: FakeClock, db: FleetDatabase
) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    others = [
        PeopleService(db, Changes(), FleetSettings(login_tries=3), clock=clock, hashing=CHEAPEST) for _ in range(2)
    ]
    services = [people, *others, *others, people]
    tries = (one.login("ada", "wrong", f"10.0.{n}.1") for n, one in enumerate(services))
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, NotAuthenticated) for result in results) == 3
    with pytest.raises(RateLimited):
        await others[0].login("ada", PASSWORD, "10.0.9.9")
    rows = await db.read(lambda session: str(session.execute(select(LoginTry.__table__)).all()))
    assert "ada" not in rows
    clock.advance(WINDOW_S + 1)
    await TelemetryKeeper(db, FleetSettings(), clock=clock).delete()
    assert await db.read(lambda session: session.scalars(select(LoginTry.digest)).all()) == []
    assert await others[1].login("ada", PASSWORD, "10.0.9.9")
    for one in others:
        one.close()


def test_one_machine_has_a_whole_network_of_ipv6() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1")


async def test_a_new_password_or_an_end_of_access_ends_logins(people: PeopleService, admin: Actor) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    await people.add_user(admin, "vera", PASSWORD, "viewer")
    token = await people.login("vera", PASSWORD, "a")
    await people.change_user(admin, "vera", password="another password")
    assert await people.of_session(token) is None
    token = await people.login("vera", "another password", "a")
    await people.change_user(admin, "vera", disabled=True)
    assert await people.of_session(token) is None
    with pytest.raises(NotAuthenticated):
        await people.login("vera", "another password", "a")
    await people.change_user(admin, "vera", disabled=False)
    assert await people.of_session(token) is None


async def test_a_changed_role_holds_at_once(people: PeopleService, admin: Actor) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    await people.add_user(admin, "vera", PASSWORD, "viewer")
    token = await people.login("vera", PASSWORD, "a")
    await people.change_user(admin, "vera", role="operator")
    actor = await people.of_session(token)
    assert actor is not None
    assert actor.role == "operator"


async def test_people_change_their_own_password_if_they_know_it(
    people: PeopleService, admin: Actor, db: FleetDatabase
) -> None:
    await people.add_user(admin, "vera", PASSWORD, "viewer")
    vera = replace(admin, name="vera", role="viewer")
    await people.login("vera", PASSWORD, "a")
    with pytest.raises(NotAuthenticated):
        await people.change_password(vera, "not the old one", "another password")
    await people.change_password(vera, PASSWORD, "another password")
    assert await db.read(lambda session: session.scalars(select(LoginSession)).all()) == []
    assert await people.login("vera", "another password", "a")


async def test_the_last_admin_stays(people: PeopleService, admin: Actor) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    with pytest.raises(InvalidRequest, match="last admin"):
        await people.change_user(admin, "ada", role="viewer")
    with pytest.raises(InvalidRequest, match="last admin"):
        await people.change_user(admin, "ada", disabled=True)
    await people.add_user(admin, "bea", PASSWORD, "admin")
    assert (await people.change_user(admin, "ada", role="viewer")).role == "viewer"


@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_people_and_tokens_are_for_admins(people: PeopleService, admin: Actor, role: str) -> None:
    actor = replace(admin, role=role)  # type: ignore[arg-type]
    for call in (
        people.users(actor),
        people.add_user(actor, "x", PASSWORD, "admin"),
        people.change_user(actor, "x", role="admin"),
        people.tokens(actor),
        people.add_token(actor, "x", "viewer", None),
        people.revoke_token(actor, "x"),
    ):
        with pytest.raises(NotPermitted):
            await call


async def test_another_tenant_sees_and_changes_nothing(people: PeopleService, admin: Actor, stranger: Actor) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    token = await people.add_token(admin, "ci", "viewer", None)
    assert await people.users(stranger) == []
    assert await people.tokens(stranger) == []
    with pytest.raises(NotFound):
        await people.change_user(stranger, "ada", password="another password")
    with pytest.raises(NotFound):
        await people.revoke_token(stranger, token.id)
    with pytest.raises(InvalidRequest, match="taken"):
        await people.add_user(stranger, "ada", PASSWORD, "admin")


async def test_tokens_end(people: PeopleService, admin: Actor, clock: FakeClock) -> None:
    made = await people.add_token(admin, "ci", "operator", 60.0)
    assert made.token is not None
    actor = await people.of_token(made.token)
    assert actor is not None
    assert (actor.name, actor.role) == ("token:ci", "operator")
    assert await people.of_token(made.token[:-1] + ("A" if made.token[-1] != "A" else "B")) is None
    clock.advance(60.0)
    assert await people.of_token(made.token) is None
    made = await people.add_token(admin, "ci", "operator", None)
    assert made.token is not None
    await people.revoke_token(admin, made.id)
    assert await people.of_token(made.token) is None
    assert all(view.token is None for view in await people.tokens(admin))


async def test_the_first_admin_is_made_once(people: PeopleService) -> None:
    password = await people.first_admin()
    assert password is not None
    token = await people.login("admin", password, "a")
    actor = await people.of_session(token)
    assert actor is not None
    assert actor.role == "admin"
    assert await people.first_admin() is None


async def test_every_change_has_its_line(people: PeopleService, admin: Actor, db: FleetDatabase) -> None:
    await people.add_user(admin, "ada", PASSWORD, "admin")
    await people.change_user(admin, "ada", password="another password")
    made = await people.add_token(admin, "ci", "viewer", None)
    await people.revoke_token(admin, made.id)
    rows = await db.read(lambda session: session.scalars(select(AuditRow).order_by(AuditRow.number)).all())
    assert [row.action for row in rows] == ["user.add", "user.change", "token.add", "token.revoke"]
    assert "another password" not in str([(row.before, row.after) for row in rows])
