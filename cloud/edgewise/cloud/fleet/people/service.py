"""Users, logins and API tokens: implements `fleet.services.People`."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

from argon2 import Parameters
from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import audit, views
from edgewise.cloud.fleet.actor import ROLES, Actor, Role, service
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, ApiToken, LoginSession, Tenant, User
from edgewise.cloud.fleet.people import secret_tokens
from edgewise.cloud.fleet.people.login_tries import LoginTries
from edgewise.cloud.fleet.people.passwords import Passwords
from edgewise.cloud.fleet.people.tries import network_of
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import InvalidRequest, NotAuthenticated, NotFound, NotPermitted
from edgewise.core.log import get_logger
from edgewise.core.settings_fleet import FleetSettings
from edgewise.wire.envelope import new_ulid

log = get_logger(__name__)

Result = TypeVar("Result")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}", re.ASCII)
_WRONG = "The name or the password is wrong."


class PeopleService:
    """People of every tenant. `close` when done.

    Args:
        hashing: What a hash of a password costs; None takes argon2's defaults.
    """

    def __init__(
        self,
        db: FleetDatabase,
        changes: Changes,
        settings: FleetSettings,
        *,
        clock: Clock | None = None,
        hashing: Parameters | None = None,
    ) -> None:
        self._db = db
        self._changes = changes
        self._clock = clock or SystemClock()
        self._session_s = settings.session_s
        self._passwords = Passwords(hashing)
        self._tries = LoginTries(db, settings.login_tries, self._clock)

    def close(self) -> None:
        self._passwords.close()

    # --- logins --------------------------------------------------------------------------------------------------------------

    async def login(self, name: str, password: str, address: str) -> str:
        """A session's token.

        Raises:
            NotAuthenticated: Wrong; whether the name exists cannot be told.
            RateLimited: After `fleet.login_tries` wrong ones of the name or the address in 15 minutes.
        """
        place, person = f"address {network_of(address)}", f"name {name[:128]}"
        await self._tries.take(person, place)
        user = await self._db.read(lambda session: _user_named(session, name))
        usable = user is not None and user.disabled_at is None and user.password is not None
        right = await self._passwords.matches(user.password if usable and user is not None else None, password)
        if user is None or not usable or not right:
            log.warning("login_refused", address=address)
            raise NotAuthenticated(_WRONG)
        await self._tries.give_back(person, place)
        return await self._open_session(user.id, address)

    async def _open_session(self, user_id: str, address: str) -> str:
        """A session of somebody who has proved who they are.

        Raises:
            NotAuthenticated: The user is gone or disabled.
        """
        token, now = secret_tokens.new_session(), self._clock.time()

        def work(session: Session) -> None:
            session.execute(delete(LoginSession).where(LoginSession.expires_at <= now))
            user = session.get(User, user_id)
            if user is None or user.disabled_at is not None:
                raise NotAuthenticated(_WRONG)
            session.add(
                LoginSession(
                    digest=secret_tokens.digest(token),
                    user_id=user.id,
                    created_at=now,
                    expires_at=now + self._session_s,
                    address=address[:64],
                )
            )
            audit.record(session, _actor(user, address), "user.login", user.name)

        await self._db.write(work)
        return token

    async def of_session(self, token: str) -> Actor | None:
        """Who has logged in with this token; None if it is unknown or over."""
        if not secret_tokens.is_session(token):
            return None
        now = self._clock.time()

        def work(session: Session) -> Actor | None:
            found = session.get(LoginSession, secret_tokens.digest(token))
            if found is None or found.expires_at <= now:
                return None
            user = session.get(User, found.user_id)
            return None if user is None or user.disabled_at is not None else _actor(user, "")

        return await self._db.read(work)

    async def of_token(self, token: str) -> Actor | None:
        """Whose API token this is; None if it is unknown, expired or revoked."""
        id = secret_tokens.token_id(token)
        if id is None:
            return None
        now = self._clock.time()

        def work(session: Session) -> Actor | None:
            row = session.get(ApiToken, id)
            genuine = hmac.compare_digest(bytes(32) if row is None else row.digest, secret_tokens.digest(token))
            if row is None or not genuine or row.revoked_at is not None:
                return None
            if row.expires_at is not None and row.expires_at <= now:
                return None
            return Actor(tenant=row.tenant_id, name=f"token:{row.name}", role=_role(row.role), via="api")

        return await self._db.read(work)

    async def logout(self, token: str) -> None:
        """The session is over; unknown ones are no error."""
        digest = secret_tokens.digest(token)
        await self._db.write(lambda session: session.execute(delete(LoginSession).where(LoginSession.digest == digest)))

    # --- users ---------------------------------------------------------------------------------------------------------------

    async def users(self, actor: Actor) -> Sequence[views.UserView]:
        actor.need("admin")
        query = select(User).where(User.tenant_id == actor.tenant).order_by(User.name)
        return await self._db.read(
            lambda session: [views.UserView.model_validate(user) for user in session.scalars(query)]
        )

    async def add_user(self, actor: Actor, name: str, password: str | None, role: Role) -> views.UserView:
        """Raises `InvalidRequest` for a name that is taken (by anybody of this service) or malformed, or a bad password."""
        actor.need("admin")
        _check_name(name)
        hashed = None if password is None else await self._passwords.hash(password)

        def work(session: Session) -> views.UserView:
            user = User(
                id=new_ulid(),
                tenant_id=actor.tenant,
                name=name,
                role=_role(role),
                password=hashed,
                created_at=self._clock.time(),
            )
            session.add(user)
            try:
                session.flush()
            except IntegrityError as error:
                raise InvalidRequest(f"The name {name} is taken.", param="name") from error
            audit.record(session, actor, "user.add", name, after={"role": role})
            return views.UserView.model_validate(user)

        return await self._change(actor, "user", name, work)

    async def change_user(
        self,
        actor: Actor,
        name: str,
        *,
        role: Role | None = None,
        password: str | None = None,
        disabled: bool | None = None,
    ) -> views.UserView:
        """A new password or an end of access ends all of the user's logins.

        Raises:
            NotFound: There is no such user.
            InvalidRequest: A bad password, or nobody would be left who is an admin.
        """
        actor.need("admin")
        hashed = None if password is None else await self._passwords.hash(password)

        def work(session: Session) -> views.UserView:
            user = _user_named(session, name)
            if user is None or user.tenant_id != actor.tenant:
                raise NotFound(f"There is no user {name[:128]}.")
            before = {"role": user.role, "disabled": user.disabled_at is not None}
            if role is not None:
                user.role = _role(role)
            if disabled is not None:
                user.disabled_at = self._clock.time() if disabled else None
            if hashed is not None:
                user.password = hashed
            if hashed is not None or disabled:
                session.execute(delete(LoginSession).where(LoginSession.user_id == user.id))
            session.flush()
            _check_admin_left(session, actor.tenant)
            after = {"role": user.role, "disabled": user.disabled_at is not None, "new_password": hashed is not None}
            audit.record(session, actor, "user.change", name, before=before, after=after)
            return views.UserView.model_validate(user)

        return await self._change(actor, "user", name, work)

    async def change_password(self, actor: Actor, old: str, new: str) -> None:
        """Of the caller, who must know the old one; all of their logins end.

        Raises:
            NotAuthenticated: The old one is wrong, or this is no user with a password.
            RateLimited: Too many wrong ones.
            InvalidRequest: The new one is too short or too long.
        """
        person = f"name {actor.name}"
        await self._tries.take(person)
        user = await self._db.read(lambda session: _user_named(session, actor.name))
        if user is None or not await self._passwords.matches(user.password, old):
            raise NotAuthenticated("The old password is wrong.")
        await self._tries.give_back(person)
        hashed = await self._passwords.hash(new)

        def work(session: Session) -> None:
            row = session.get(User, user.id)
            if row is None or row.password != user.password:
                raise NotAuthenticated("The password was changed meanwhile.")
            row.password = hashed
            session.execute(delete(LoginSession).where(LoginSession.user_id == row.id))
            audit.record(session, actor, "user.password", row.name)

        await self._change(actor, "user", actor.name, work)

    async def anybody(self) -> bool:
        """Whether there is a user at all."""
        return bool(await self._db.read(lambda session: session.scalar(select(func.count()).select_from(User))))

    async def first_admin(self, name: str = "admin", password: str | None = None) -> str | None:
        """Make the first admin of the first tenant, with a drawn password unless one is given; the password, to be shown once.

        None: there are users already, and nothing is changed.
        """
        password = password or secrets.token_urlsafe(12)
        _check_name(name)
        hashed = await self._passwords.hash(password)

        def work(session: Session) -> bool:
            tenant = ensure_tenant(session, FIRST_TENANT, now=self._clock.time())
            if session.scalar(select(func.count()).select_from(User)):
                return False
            session.add(
                User(
                    id=new_ulid(),
                    tenant_id=tenant,
                    name=name,
                    role="admin",
                    password=hashed,
                    created_at=self._clock.time(),
                )
            )
            audit.record(session, service(tenant, "fleet"), "user.add", name, after={"role": "admin"})
            return True

        return password if await self._db.write(work) else None

    # --- tokens --------------------------------------------------------------------------------------------------------------

    async def tokens(self, actor: Actor) -> Sequence[views.TokenView]:
        actor.need("admin")
        query = select(ApiToken).where(ApiToken.tenant_id == actor.tenant).order_by(ApiToken.created_at)
        return await self._db.read(
            lambda session: [views.TokenView.model_validate(row) for row in session.scalars(query)]
        )

    async def add_token(self, actor: Actor, name: str, role: Role, ttl_s: float | None) -> views.TokenView:
        """Raises `InvalidRequest` for a malformed name or a life that is not positive."""
        actor.need("admin")
        _check_name(name)
        if ttl_s is not None and not 0 < ttl_s < 1e10:
            raise InvalidRequest("The life of a token is a positive number of seconds.", param="ttl_s")
        token, now = secret_tokens.new_token(), self._clock.time()

        def work(session: Session) -> views.TokenView:
            row = ApiToken(
                id=token.id,
                tenant_id=actor.tenant,
                name=name,
                role=_role(role),
                digest=secret_tokens.digest(token.text),
                author=actor.name,
                created_at=now,
                expires_at=None if ttl_s is None else now + ttl_s,
            )
            session.add(row)
            audit.record(session, actor, "token.add", token.id, after={"name": name, "role": role, "ttl_s": ttl_s})
            return views.TokenView.model_validate(row).model_copy(update={"token": token.text})

        return await self._change(actor, "token", token.id, work)

    async def revoke_token(self, actor: Actor, token_id: str) -> None:
        """Raises `NotFound` if there is none."""
        actor.need("admin")

        def work(session: Session) -> None:
            row = session.get(ApiToken, token_id)
            if row is None or row.tenant_id != actor.tenant:
                raise NotFound(f"There is no token {token_id[:40]}.")
            if row.revoked_at is None:
                row.revoked_at = self._clock.time()
                audit.record(session, actor, "token.revoke", token_id, before={"name": row.name, "role": row.role})

        await self._change(actor, "token", token_id, work)

    # --- those who log in at an OpenID provider --------------------------------------------------------------------------------

    async def login_at_provider(self, subject: str, email: str | None, address: str) -> str:
        """A session's token of the user who is `subject` at the OpenID provider; at the first login, of the one without a
        password whose name is the verified `email`.

        Raises:
            NotPermitted: Nobody here is that person.
        """

        def work(session: Session) -> str:
            user = session.scalars(select(User).where(User.subject == subject)).first()
            if user is None and email is not None:
                user = _user_named(session, email)
                if user is not None and (user.password is not None or user.subject is not None):
                    user = None
                if user is not None:
                    user.subject = subject
                    audit.record(session, _actor(user, address), "user.bind", user.name, after={"subject": subject})
            if user is None or user.disabled_at is not None:
                raise NotPermitted(
                    f"{email or subject} has no account here: ask an admin to add a user of that name without a password."
                )
            return user.id

        return await self._open_session(await self._db.write(work), address)

    async def _change(self, actor: Actor, kind: str, id: str, work: Callable[[Session], Result]) -> Result:
        result = await self._db.write(work)
        self._changes.publish(Change(actor.tenant, kind, id))
        return result


def ensure_tenant(session: Session, name: str, *, now: float) -> str:
    """The id of the tenant of this name, made if there is none."""
    tenant = session.scalars(select(Tenant).where(Tenant.name == name)).first()
    if tenant is None:
        tenant = Tenant(id=new_ulid(), name=name, created_at=now)
        session.add(tenant)
        session.flush()
    return tenant.id


def _user_named(session: Session, name: str) -> User | None:
    return session.scalars(select(User).where(User.name == name)).first()


def _actor(user: User, address: str) -> Actor:
    return Actor(tenant=user.tenant_id, name=user.name, role=_role(user.role), via=address[:40])


def _role(text: str) -> Role:
    for role in ROLES:
        if role == text:
            return role
    raise InvalidRequest(f"The role {text[:40]!r} is unknown: choose from {', '.join(ROLES)}.", param="role")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "A name has 1 to 128 letters, digits and ._@+- and begins with a letter or digit.", param="name"
        )


def _check_admin_left(session: Session, tenant: str) -> None:
    admins = select(func.count()).where(User.tenant_id == tenant, User.role == "admin", User.disabled_at.is_(None))
    if not session.scalar(admins):
        raise InvalidRequest("The last admin must stay one: make another first.", param="role")
