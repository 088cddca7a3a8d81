"""Bodies of requests. A field that is not named here is refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from edgewise.cloud.fleet.actor import Role
from edgewise.wire.fleet import Op, Shadow

Text = Annotated[str, StringConstraints(max_length=2000)]
Uids = Annotated[tuple[Annotated[str, StringConstraints(min_length=1, max_length=64)], ...], Field(max_length=10_000)]
Seconds = Annotated[float, Field(gt=0, le=10 * 366 * 86_400.0)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Login(Body):
    """With `cookie` the login is kept in a cookie, without it its token is in the answer, to be sent as bearer."""

    name: str = Field(max_length=128)
    password: str = Field(max_length=1024)
    cookie: bool = True


class PasswordChange(Body):
    old: str = Field(max_length=1024)
    new: str = Field(max_length=1024)


class DeviceEdit(Body):
    """What is not given stays."""

    name: str | None = Field(default=None, max_length=128)
    labels: dict[str, Any] | None = None
    notes: str | None = Field(default=None, max_length=10_000)


class GroupSave(Body):
    name: str = Field(min_length=1, max_length=128)
    query: Text


class Desire(Body):
    document: dict[str, Any]


class CommandSend(Body):
    """To the devices named in `uids`, or to all that match `query` when it is taken; one of the two."""

    uids: Uids | None = None
    query: Text | None = None
    op: Op
    args: dict[str, Any] = {}
    key: str | None = Field(default=None, min_length=1, max_length=128)
    ttl_s: Seconds | None = None
    total_s: Seconds | None = None
    step_s: Seconds | None = None


class RolloutCreate(Body):
    name: str = Field(min_length=1, max_length=128)
    shadow: Shadow
    document: dict[str, Any]
    query: Text
    plan: dict[str, Any] = {}
    start: bool = False


class Silence(Body):
    seconds: float = Field(ge=0, le=10 * 366 * 86_400.0)


class UserAdd(Body):
    """Without a password the person logs in at the OpenID provider."""

    name: str = Field(max_length=128)
    password: str | None = Field(default=None, max_length=1024)
    role: Role = "viewer"


class UserChange(Body):
    role: Role | None = None
    password: str | None = Field(default=None, max_length=1024)
    disabled: bool | None = None


class TokenAdd(Body):
    """`ttl_s` is its life; without one it does not end."""

    name: str = Field(max_length=128)
    role: Role = "viewer"
    ttl_s: Seconds | None = None


class CodeAdd(Body):
    ttl_s: Seconds = 3600.0
    uses: int = Field(default=1, ge=1, le=10_000)
    auto_accept: bool = False
    cloud: bool = False
    labels: dict[str, Any] = {}
    uid: str | None = Field(default=None, max_length=64)


class Who(BaseModel):
    """Who calls. `csrf` goes into the header X-CSRF-Token of whatever a login by cookie changes; `token`: see `Login.cookie`."""

    tenant: str
    name: str
    role: Role
    csrf: str | None = None
    token: str | None = None


class Matching(BaseModel):
    """All devices that match a query."""

    uids: tuple[str, ...]


class AuditCheck(BaseModel):
    """`problem` None: the chain is whole."""

    problem: str | None


class Lines(BaseModel):
    lines: tuple[str, ...]
