"""The part of the fleet's double (tests/fakes/fleet_services.py) that has people, tokens, claim codes, keys and the audit log."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor, Role
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.core.errors import InvalidRequest, NotAuthenticated, NotFound, NotPermitted, RateLimited

PASSWORD = "correct horse battery"


class FakePeople:
    """Users ada (admin), olu (operator) and vera (viewer), with one password; ten wrong tries and it is shut."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        roles: dict[str, Role] = {"ada": "admin", "olu": "operator", "vera": "viewer"}
        self.users_ = {
            name: views.UserView(id=name, name=name, role=role, created_at=time.time() - 9e5, disabled_at=None)
            for name, role in roles.items()
        }
        self.tokens_: dict[str, views.TokenView] = {}
        self.sessions: dict[str, str] = {}
        self.tries = 0

    async def login(self, name: str, password: str, address: str) -> str:
        if self.tries >= 10:
            raise RateLimited("Too many wrong passwords for this user or address.", retry_after_s=600.0)
        user = self.users_.get(name)
        if password != PASSWORD or user is None or user.disabled_at is not None:
            self.tries += 1
            raise NotAuthenticated("Name or password is wrong.")
        token = secrets.token_urlsafe(24)
        self.sessions[token] = name
        return token

    async def login_at_provider(self, subject: str, email: str | None, address: str) -> str:
        raise NotPermitted(f"{email or subject} has no account here.")

    async def of_session(self, token: str) -> Actor | None:
        user = self.users_.get(self.sessions.get(token, ""))
        if user is None or user.disabled_at is not None:
            return None
        return Actor(tenant=self._tenant, name=user.name, role=user.role, via="console")

    async def of_token(self, token: str) -> Actor | None:
        return None

    async def logout(self, token: str) -> None:
        self.sessions.pop(token, None)

    async def users(self, actor: Actor) -> Sequence[views.UserView]:
        actor.need("admin")
        return list(self.users_.values())

    async def add_user(self, actor: Actor, name: str, password: str | None, role: Role) -> views.UserView:
        actor.need("admin")
        if password is not None and len(password) < 12:
            raise InvalidRequest("The password is shorter than 12 characters.", param="password")
        self.users_[name] = views.UserView(id=name, name=name, role=role, created_at=time.time(), disabled_at=None)
        return self.users_[name]

    async def change_user(self, actor: Actor, name: str, *, role: Role | None = None, password: str | None = None,
                          disabled: bool | None = None) -> views.UserView:  # fmt: skip
        actor.need("admin")
        update: dict[str, Any] = {} if role is None else {"role": role}
        if disabled is not None:
            update["disabled_at"] = time.time() if disabled else None
        self.users_[name] = self.users_[name].model_copy(update=update)
        return self.users_[name]

    async def change_password(self, actor: Actor, old: str, new: str) -> None:
        if old != PASSWORD:
            raise NotAuthenticated("The old password is wrong.")
        self.sessions = {token: name for token, name in self.sessions.items() if name != actor.name}

    async def tokens(self, actor: Actor) -> Sequence[views.TokenView]:
        return [token.model_copy(update={"token": None}) for token in self.tokens_.values()]

    async def add_token(self, actor: Actor, name: str, role: Role, ttl_s: float | None) -> views.TokenView:
        now = time.time()
        view = views.TokenView(id=f"t{len(self.tokens_)}", token="ewf_" + secrets.token_urlsafe(24), name=name, role=role,
                               author=actor.name, created_at=now, expires_at=ttl_s and now + ttl_s, revoked_at=None)  # fmt: skip
        self.tokens_[view.id] = view
        return view

    async def revoke_token(self, actor: Actor, token_id: str) -> None:
        self.tokens_[token_id] = self.tokens_[token_id].model_copy(update={"revoked_at": time.time()})


class FakeEnrolment:
    """One key waits to be accepted."""

    def __init__(self, tenant: str, changes: Changes) -> None:
        self._tenant, self._changes = tenant, changes
        self.codes_: dict[str, views.CodeView] = {}
        key = views.KeyView(id="k1", uid="dnew", state="pending", fingerprint="9f" * 32, serial=None, created_at=time.time() - 90,
                            facts={"name": "porto-line9", "hardware": {"family": "jetson-orin"}, "address": "10.1.4.7"},
                            expires_at=None, changed_at=time.time() - 90)  # fmt: skip
        other = {"id": "k2", "uid": "dother", "state": "active", "fingerprint": "a1" * 32, "serial": "4711"}
        self.keys_ = {"k1": key, "k2": key.model_copy(update={**other, "expires_at": time.time() + 5e6})}

    async def codes(self, actor: Actor) -> Sequence[views.CodeView]:
        actor.need("admin")
        return [code.model_copy(update={"code": None}) for code in self.codes_.values()]

    async def add_code(self, actor: Actor, *, ttl_s: float = 3600.0, uses: int = 1, auto_accept: bool = False,
                       labels: Mapping[str, Any] | None = None, uid: str | None = None,
                       cloud: bool = False) -> views.CodeView:  # fmt: skip
        actor.need("admin")
        now = time.time()
        view = views.CodeView(id=f"code{len(self.codes_)}", code="ABCD-EFGH-JKMN", labels=dict(labels or {}), uid=uid,
                              author=actor.name, auto_accept=auto_accept, cloud=cloud, uses=uses,
                              created_at=now, expires_at=now + ttl_s)  # fmt: skip
        self.codes_[view.id] = view
        return view

    async def delete_code(self, actor: Actor, code_id: str) -> None:
        del self.codes_[code_id]

    async def keys(self, actor: Actor, *, uid: str | None = None, state: str | None = None) -> Sequence[views.KeyView]:
        return [key for key in self.keys_.values() if uid in (None, key.uid) and state in (None, key.state)]

    async def decide(self, actor: Actor, key_id: str, accept: bool) -> views.KeyView:
        actor.need("admin")
        return self._change(key_id, "active" if accept else "refused")

    async def revoke(self, actor: Actor, key_id: str) -> views.KeyView:
        actor.need("admin")
        return self._change(key_id, "revoked")

    def _change(self, key_id: str, state: str) -> views.KeyView:
        if key_id not in self.keys_:
            raise NotFound(f"There is no key {key_id}.")
        self.keys_[key_id] = self.keys_[key_id].model_copy(update={"state": state, "changed_at": time.time()})
        self._changes.publish(Change(self._tenant, "key", key_id))
        return self.keys_[key_id]


class FakeAudit:
    def __init__(self) -> None:
        self.broken: str | None = None

    async def entries(self, actor: Actor, *, target: str | None = None, limit: int = 100,
                      after: str | None = None) -> views.Page[views.AuditView]:  # fmt: skip
        actor.need("admin")
        newest = int(after or 240)
        items = tuple(
            views.AuditView(number=n, at=time.time() - (240 - n) * 311, actor="ada", via="console 127.0.0.1",
                            action="device.edit" if n % 3 else "shadow.desire", target=f"device:d{n:05d}",
                            before={"name": f"line-{n}"}, after={"name": f"line-{n}-b"})
            for n in range(newest, max(0, newest - limit), -1)
        )  # fmt: skip
        left = newest - len(items)
        return views.Page[views.AuditView](items=items, total=240, after=str(left) if left > 0 else None)

    async def verify(self, actor: Actor) -> str | None:
        return self.broken
