"""What the fleet shows: answers of its REST API, and what console and command line are made of. Times: seconds since 1970."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from edgewise.wire.fleet import CommandState, Severity, Shadow

DeviceState = Literal["online", "degraded", "draining", "offline-expected", "offline", "never-seen"]
RolloutState = Literal[
    "draft", "waiting-approval", "running", "paused", "succeeded", "failed", "rolling-back", "rolled-back", "cancelled"
]
GOING: tuple[RolloutState, ...] = ("waiting-approval", "running", "paused", "rolling-back")
"""States of a rollout that has begun and not ended."""
Item = TypeVar("Item")


class View(BaseModel):
    """Base of all: frozen; built from rows."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Page(View, Generic[Item]):
    """Some of many. `total` counts all that match; `after` asks for the next page, None on the last."""

    items: tuple[Item, ...]
    total: int
    after: str | None = None


class DeviceView(View):
    """A line of the table. `gauges` are the newest values of its telemetry by name; `models` names what it holds."""

    uid: str
    name: str
    labels: dict[str, Any]
    state: DeviceState
    state_reason: str = ""
    state_at: float
    seen_at: float | None = None
    version: str = ""
    models: tuple[dict[str, Any], ...] = ()
    gauges: dict[str, float] = {}
    alerts: int = 0


class DeviceDetail(DeviceView):
    """One device, whole: `birth` is what it last said of itself (`wire.fleet.Birth`)."""

    notes: str = ""
    birth: dict[str, Any] = {}
    created_at: float
    expected_until: float | None = None
    shadows: tuple[ShadowView, ...] = ()
    keys: tuple[KeyView, ...] = ()


class ShadowView(View):
    """Desired against reported. `in_sync`: the newest desired generation is in force."""

    uid: str
    shadow: Shadow
    gen: int
    desired: dict[str, Any] | None = None
    author: str = ""
    desired_at: float | None = None
    seen: int = 0
    applied: int = 0
    state: str = ""
    reason: str = ""
    reported: dict[str, Any] | None = None
    edits: tuple[dict[str, Any], ...] = ()
    reported_at: float | None = None

    @property
    def in_sync(self) -> bool:
        return self.gen == self.applied and self.state in ("", "applied")


class StepView(View):
    state: CommandState
    step: str = ""
    percent: float | None = None
    reason: str = ""
    at: float


class CommandView(View):
    """A command; `steps` only where one command is asked for."""

    id: str
    uid: str
    batch_id: str | None = None
    op: str
    args: dict[str, Any]
    author: str
    state: CommandState
    step: str = ""
    percent: float | None = None
    code: str = ""
    reason: str = ""
    retryable: bool = False
    result: dict[str, Any] | None = None
    created_at: float
    sent_at: float | None = None
    changed_at: float
    steps: tuple[StepView, ...] = ()


class PointView(View):
    """`at` is the beginning of a minute or hour with its figures, or the moment of a single sample (least = mean = most)."""

    at: float
    mean: float
    least: float
    most: float


class SeriesView(View):
    uid: str
    name: str
    span_s: int
    points: tuple[PointView, ...]


class EventView(View):
    id: str
    uid: str | None
    kind: str
    severity: Severity
    message: str
    facts: dict[str, Any]
    at: float


class ModelUseView(View):
    """A model that devices hold, by name and digest: how many hold it, have it loaded, or failed to get or load it."""

    name: str
    digest: str | None = None
    devices: int
    loaded: int
    failed: int


class GroupView(View):
    """A saved query with how many devices match now."""

    id: str
    name: str
    query: str
    author: str
    created_at: float
    count: int = 0


class RolloutDeviceView(View):
    """`checks` holds what was measured for its gate: health, version, agreement, tokens_per_s, joules_per_token."""

    uid: str
    stage: int
    state: str
    gen: int
    checks: dict[str, Any]
    reason: str
    at: float


class RolloutView(View):
    """`plan` is `fleet.rollouts.plan.RolloutPlan`; `counts` devices by state."""

    id: str
    name: str
    shadow: Shadow
    document: dict[str, Any]
    query: str
    plan: dict[str, Any]
    state: RolloutState
    stage: int
    stage_at: float | None
    reason: str
    author: str
    approved_by: str
    created_at: float
    changed_at: float
    counts: dict[str, int] = {}
    devices: tuple[RolloutDeviceView, ...] = ()


class AlertRuleView(View):
    id: str
    name: str
    query: str
    condition: dict[str, Any]
    severity: Severity
    deliver: tuple[dict[str, Any], ...]
    enabled: bool
    silenced_until: float | None


class AlertView(View):
    id: str
    rule_id: str
    rule: str
    uid: str | None
    severity: Severity
    message: str
    value: float | None
    raised_at: float
    cleared_at: float | None
    acknowledged_by: str


class KeyView(View):
    """A key of a device. `fingerprint` is the SHA-256 of its public key."""

    id: str
    uid: str
    state: Literal["pending", "active", "replaced", "revoked", "refused"]
    fingerprint: str
    serial: str | None
    facts: dict[str, Any]
    created_at: float
    expires_at: float | None
    changed_at: float


class CodeView(View):
    """A claim code; `code` itself is shown once, when it is made. `uid`: the device whose key it replaces, if it is for one."""

    id: str
    code: str | None = None
    uid: str | None = None
    labels: dict[str, Any]
    auto_accept: bool
    cloud: bool = False
    uses: int
    author: str
    created_at: float
    expires_at: float


class UserView(View):
    id: str
    name: str
    role: Literal["viewer", "operator", "admin"]
    created_at: float
    disabled_at: float | None


class TokenView(View):
    """An API token; `token` itself is shown once, when it is made."""

    id: str
    token: str | None = None
    name: str
    role: Literal["viewer", "operator", "admin"]
    author: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None


class AuditView(View):
    number: int
    at: float
    actor: str
    via: str
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


DeviceDetail.model_rebuild()
