"""What the fleet can do, as REST API, console and command line call it. `app.py` puts the real parts together.

Every mutating call checks the actor's role, does its work and the line of the audit log in one transaction, and publishes a
`Change`. Errors are of the error tree. Nothing of another tenant is ever found.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor, Role
from edgewise.cloud.fleet.changes import Changes
from edgewise.wire.fleet import Ack, Challenge, Enrolled, EnrolPoll, EnrolRequest, RenewalQuestion, RenewRequest, Shadow


class Registry(Protocol):
    """Devices, labels, groups, and what they last said. Queries are `fleet.query`'s language."""

    async def devices(
        self, actor: Actor, query: str = "", *, sort: str = "name", limit: int = 50, after: str | None = None
    ) -> views.Page[views.DeviceView]: ...

    async def counts(self, actor: Actor, query: str = "") -> Mapping[str, int]:
        """Devices by state."""

    async def device(self, actor: Actor, uid: str) -> views.DeviceDetail: ...

    async def uids(self, actor: Actor, query: str) -> Sequence[str]:
        """All that match: what a confirmation shows, and what an action then acts on."""

    async def models(self, actor: Actor) -> Sequence[views.ModelUseView]:
        """The models that devices say they hold, most used first; at most some hundreds."""

    async def edit(
        self,
        actor: Actor,
        uid: str,
        *,
        name: str | None = None,
        labels: Mapping[str, Any] | None = None,
        notes: str | None = None,
    ) -> views.DeviceDetail: ...

    async def retire(self, actor: Actor, uid: str) -> None:
        """Decommission: its keys are revoked, retained topics cleared, rows kept for the audit."""

    async def groups(self, actor: Actor) -> Sequence[views.GroupView]: ...

    async def save_group(self, actor: Actor, name: str, query: str) -> views.GroupView: ...

    async def delete_group(self, actor: Actor, group_id: str) -> None: ...

    async def events(
        self, actor: Actor, uid: str | None = None, *, limit: int = 100, after: str | None = None
    ) -> views.Page[views.EventView]: ...


class Telemetry(Protocol):
    async def series(
        self, actor: Actor, uid: str, name: str, *, since: float, until: float | None = None, span_s: int | None = None
    ) -> views.SeriesView:
        """Points of a value; `span_s` None takes the finest that gives at most some hundreds of points."""

    async def names(self, actor: Actor, uid: str) -> Sequence[str]: ...


class Shadows(Protocol):
    async def desire(self, actor: Actor, uid: str, shadow: Shadow, document: Mapping[str, Any]) -> views.ShadowView:
        """A new generation of the whole document; sent at once if the device is there, else at its next sync."""

    async def desire_all(
        self, actor: Actor, uids: Sequence[str], shadow: Shadow, document: Mapping[str, Any]
    ) -> Mapping[str, int]:
        """As `desire`, of many devices in one transaction; the generation of each."""

    async def shadow(self, actor: Actor, uid: str, shadow: Shadow) -> views.ShadowView: ...


class Commands(Protocol):
    async def send(
        self,
        actor: Actor,
        uids: Sequence[str],
        op: str,
        args: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        ttl_s: float | None = None,
        total_s: float | None = None,
        step_s: float | None = None,
    ) -> Sequence[views.CommandView]:
        """One command to each device; with `key`, a repeat finds the command that is there."""

    async def cancel(self, actor: Actor, command_id: str) -> views.CommandView:
        """Ask for an end; the state says what really happened."""

    async def command(self, actor: Actor, command_id: str) -> views.CommandView: ...

    async def commands(
        self,
        actor: Actor,
        *,
        uid: str | None = None,
        batch_id: str | None = None,
        state: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> views.Page[views.CommandView]: ...

    def stream(self, actor: Actor, command_id: str) -> AsyncIterator[Ack]:
        """Acks of a command as they come (the pieces of `infer` too), until it has ended; grants credit on the way."""

    async def log(self, actor: Actor, command_id: str) -> Sequence[str]:
        """Lines that a `logs` command has brought."""


class Rollouts(Protocol):
    async def create(
        self,
        actor: Actor,
        name: str,
        shadow: Shadow,
        document: Mapping[str, Any],
        query: str,
        plan: Mapping[str, Any],
        *,
        start: bool = False,
    ) -> views.RolloutView: ...

    async def act(self, actor: Actor, rollout_id: str, what: str) -> views.RolloutView:
        """`what`: start, approve, pause, resume, cancel, roll-back."""

    async def rollout(self, actor: Actor, rollout_id: str) -> views.RolloutView: ...

    async def rollouts(
        self, actor: Actor, *, limit: int = 50, after: str | None = None
    ) -> views.Page[views.RolloutView]: ...


class Alerts(Protocol):
    async def alerts(
        self,
        actor: Actor,
        *,
        open_only: bool = True,
        uid: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> views.Page[views.AlertView]: ...

    async def acknowledge(self, actor: Actor, alert_id: str) -> views.AlertView: ...

    async def rules(self, actor: Actor) -> Sequence[views.AlertRuleView]: ...

    async def save_rule(self, actor: Actor, rule: Mapping[str, Any]) -> views.AlertRuleView: ...

    async def delete_rule(self, actor: Actor, rule_id: str) -> None: ...

    async def silence(self, actor: Actor, rule_id: str, seconds: float) -> views.AlertRuleView: ...


class People(Protocol):
    """Users, sessions, tokens. Names and passwords are never logged."""

    async def login(self, name: str, password: str, address: str) -> str:
        """A session's token; raises `NotAuthenticated`, or `RateLimited` after too many tries."""

    async def login_at_provider(self, subject: str, email: str | None, address: str) -> str:
        """The same for somebody whom an OpenID provider knows; raises `NotPermitted` if nobody here is that person."""

    async def of_session(self, token: str) -> Actor | None: ...

    async def of_token(self, token: str) -> Actor | None: ...

    async def logout(self, token: str) -> None: ...

    async def users(self, actor: Actor) -> Sequence[views.UserView]: ...

    async def add_user(self, actor: Actor, name: str, password: str | None, role: Role) -> views.UserView:
        """`password` None: the person logs in at the OpenID provider, whose verified e-mail address is the name."""

    async def change_user(
        self,
        actor: Actor,
        name: str,
        *,
        role: Role | None = None,
        password: str | None = None,
        disabled: bool | None = None,
    ) -> views.UserView: ...

    async def change_password(self, actor: Actor, old: str, new: str) -> None:
        """Of the caller; all of their logins end."""

    async def tokens(self, actor: Actor) -> Sequence[views.TokenView]: ...

    async def add_token(self, actor: Actor, name: str, role: Role, ttl_s: float | None) -> views.TokenView: ...

    async def revoke_token(self, actor: Actor, token_id: str) -> None: ...


class Enrolment(Protocol):
    async def codes(self, actor: Actor) -> Sequence[views.CodeView]: ...

    async def add_code(
        self,
        actor: Actor,
        *,
        ttl_s: float = 3600.0,
        uses: int = 1,
        auto_accept: bool = False,
        labels: Mapping[str, Any] | None = None,
        uid: str | None = None,
        cloud: bool = False,
    ) -> views.CodeView:
        """A new code, shown this once; with `uid` it gives that device a new key in place of one that was lost, with `cloud` its
        devices get a key for the cloud engine too."""

    async def delete_code(self, actor: Actor, code_id: str) -> None: ...

    async def keys(
        self, actor: Actor, *, uid: str | None = None, state: str | None = None
    ) -> Sequence[views.KeyView]: ...

    async def decide(self, actor: Actor, key_id: str, accept: bool) -> views.KeyView: ...

    async def revoke(self, actor: Actor, key_id: str) -> views.KeyView: ...

    # What devices call; nothing but the body proves who they are.

    async def enrol(self, request: EnrolRequest, address: str) -> Enrolled:
        """Raises `NotPermitted` for a bad code, `InvalidRequest` for a bad CSR, `RateLimited` after too many bad codes."""

    async def status(self, poll: EnrolPoll, address: str) -> Enrolled: ...

    async def challenge(self, question: RenewalQuestion) -> Challenge: ...

    async def renew(self, request: RenewRequest, address: str) -> Enrolled: ...


class Audit(Protocol):
    async def entries(
        self, actor: Actor, *, target: str | None = None, limit: int = 100, after: str | None = None
    ) -> views.Page[views.AuditView]: ...

    async def verify(self, actor: Actor) -> str | None:
        """None if the chain is whole, else what is wrong and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All of it."""

    registry: Registry
    telemetry: Telemetry
    shadows: Shadows
    commands: Commands
    rollouts: Rollouts
    alerts: Alerts
    people: People
    enrolment: Enrolment
    audit: Audit
    changes: Changes
