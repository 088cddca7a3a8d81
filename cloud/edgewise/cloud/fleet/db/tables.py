"""The tables. Every row belongs to a tenant; times are this service's own clock, seconds since 1970.

A change here needs a migration in `migrations/versions`; a test compares the two.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Id = String(26)  # ULID
Name = String(128)


class Base(DeclarativeBase):
    """Of all tables. Dictionaries are stored as JSON."""

    type_annotation_map: ClassVar = {dict[str, Any]: JSON, list[Any]: JSON, float: Float(53)}


FIRST_TENANT = "default"
"""The tenant that is there from the first start."""


class Tenant(Base):
    __tablename__ = "tenants"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(Name, unique=True)
    created_at: Mapped[float]


class Device(Base):
    """A device that was enrolled, with what it last said of itself. `uid` is its name in topics and certificates."""

    __tablename__ = "devices"
    uid: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(Name, default="")
    folded: Mapped[str] = mapped_column(String(256), default="")  # the name as it is searched and sorted: without case
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)  # `DeviceLabel` has them again, to be searched
    notes: Mapped[str] = mapped_column(Text, default="")
    # presence: what the device said last, in the order of its sessions and messages
    state: Mapped[str] = mapped_column(String(16), default="never-seen", index=True)
    state_reason: Mapped[str] = mapped_column(String(200), default="")
    state_at: Mapped[float] = mapped_column(default=0.0)
    ep: Mapped[int] = mapped_column(BigInteger, default=0)
    seq: Mapped[int] = mapped_column(BigInteger, default=0)
    ended: Mapped[bool] = mapped_column(default=False)  # the session `ep` is over: the device or its will said so
    seen_at: Mapped[float | None]
    gone_at: Mapped[float | None]  # its will came: offline after the grace, unless it is back before
    expected_until: Mapped[float | None]  # of an offline that was announced
    degraded: Mapped[str] = mapped_column(String(200), default="")  # why it is not well, while it is there
    # its last birth
    birth_ep: Mapped[int] = mapped_column(BigInteger, default=0)
    birth_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    version: Mapped[str] = mapped_column(String(40), default="")
    version_key: Mapped[str] = mapped_column(String(128), default="")  # orders versions as text (`query.versions`)
    boot: Mapped[str] = mapped_column(String(64), default="")
    birth: Mapped[dict[str, Any]] = mapped_column(default=dict)
    models: Mapped[list[Any]] = mapped_column(default=list)  # `DeviceModel` has them again, to be searched
    gauges: Mapped[dict[str, Any]] = mapped_column(default=dict)  # newest values of its telemetry
    gauges_at: Mapped[dict[str, Any]] = mapped_column(
        default=dict
    )  # by group: `at`, of which moment; `names`, ever sent
    created_at: Mapped[float]
    retired_at: Mapped[float | None]
    __table_args__ = (Index("devices_by_name", "tenant_id", "folded", "uid"),)


class DeviceLabel(Base):
    """A label of a device, to be searched: `value` without case, and as a number if it is one."""

    __tablename__ = "device_labels"
    uid: Mapped[str] = mapped_column(ForeignKey("devices.uid"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(256))
    number: Mapped[float | None]
    __table_args__ = (Index("device_labels_by_value", "name", "value"),)


class DeviceModel(Base):
    """A model that a device holds, to be searched; `name` without case."""

    __tablename__ = "device_models"
    uid: Mapped[str] = mapped_column(ForeignKey("devices.uid"), primary_key=True)
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    digest: Mapped[str | None] = mapped_column(String(80), index=True)
    loaded: Mapped[bool] = mapped_column(default=False)
    state: Mapped[str] = mapped_column(String(16), default="ready")
    __table_args__ = (Index("device_models_by_name", "name"),)


class ShadowRow(Base):
    """One shadow of one device: what is desired, and what the device reported."""

    __tablename__ = "shadows"
    uid: Mapped[str] = mapped_column(ForeignKey("devices.uid"), primary_key=True)
    shadow: Mapped[str] = mapped_column(String(16), primary_key=True)
    gen: Mapped[int] = mapped_column(Integer, default=0)
    desired: Mapped[dict[str, Any] | None]
    author: Mapped[str] = mapped_column(Name, default="")
    desired_at: Mapped[float | None]
    seen: Mapped[int] = mapped_column(Integer, default=0)
    applied: Mapped[int] = mapped_column(Integer, default=0)
    state: Mapped[str] = mapped_column(String(16), default="")
    reason: Mapped[str] = mapped_column(Text, default="")
    reported: Mapped[dict[str, Any] | None]
    edits: Mapped[list[Any]] = mapped_column(default=list)
    ep: Mapped[int] = mapped_column(BigInteger, default=0)
    seq: Mapped[int] = mapped_column(BigInteger, default=0)
    reported_at: Mapped[float | None]


class ShadowPast(Base):
    """The last few documents that were desired before the one in `shadows`."""

    __tablename__ = "shadow_past"
    uid: Mapped[str] = mapped_column(ForeignKey("devices.uid"), primary_key=True)
    shadow: Mapped[str] = mapped_column(String(16), primary_key=True)
    gen: Mapped[int] = mapped_column(Integer, primary_key=True)
    document: Mapped[dict[str, Any]]
    author: Mapped[str] = mapped_column(Name, default="")
    at: Mapped[float]


class CommandRow(Base):
    """One command to one device, through its life (docs/wire.md)."""

    __tablename__ = "commands"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    uid: Mapped[str] = mapped_column(ForeignKey("devices.uid"), index=True)
    batch_id: Mapped[str | None] = mapped_column(Id, index=True)  # sent to several devices at once
    key: Mapped[str | None] = mapped_column(String(128))
    op: Mapped[str] = mapped_column(String(48))
    args: Mapped[dict[str, Any]] = mapped_column(default=dict)
    author: Mapped[str] = mapped_column(Name, default="")
    state: Mapped[str] = mapped_column(String(16), default="queued", index=True)
    step: Mapped[str] = mapped_column(String(200), default="")
    percent: Mapped[float | None]
    code: Mapped[str] = mapped_column(String(100), default="")
    reason: Mapped[str] = mapped_column(Text, default="")
    retryable: Mapped[bool] = mapped_column(default=False)
    result: Mapped[dict[str, Any] | None]
    ttl_s: Mapped[float | None]
    total_s: Mapped[float | None]
    step_s: Mapped[float | None]
    tries: Mapped[int] = mapped_column(Integer, default=0)
    ep: Mapped[int] = mapped_column(BigInteger, default=0)
    seq: Mapped[int] = mapped_column(BigInteger, default=0)  # of the ack that made the state
    created_at: Mapped[float]
    sent_at: Mapped[float | None]
    cancel_at: Mapped[float | None]  # somebody asked for its end
    changed_at: Mapped[float]
    __table_args__ = (
        UniqueConstraint("uid", "key"),
        Index("commands_by_tenant", "tenant_id", "id"),
        Index("commands_by_time", "changed_at"),
    )


class CommandLog(Base):
    """A part of the log that the command `logs` brought."""

    __tablename__ = "command_logs"
    command_id: Mapped[str] = mapped_column(ForeignKey("commands.id"), primary_key=True)
    part: Mapped[int] = mapped_column(Integer, primary_key=True)
    lines: Mapped[list[Any]]


class CommandStep(Base):
    """The timeline of a command: each change of its state, once."""

    __tablename__ = "command_steps"
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    command_id: Mapped[str] = mapped_column(ForeignKey("commands.id"), index=True)
    message_id: Mapped[str | None] = mapped_column(Id, unique=True)
    state: Mapped[str] = mapped_column(String(16))
    step: Mapped[str] = mapped_column(String(200), default="")
    percent: Mapped[float | None]
    reason: Mapped[str] = mapped_column(Text, default="")
    at: Mapped[float]


class SampleRow(Base):
    """Single values of telemetry. A batch arrives in one transaction with its `Arrival`, so none is doubled."""

    __tablename__ = "samples"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    uid: Mapped[str] = mapped_column(String(64))
    at: Mapped[float]
    values: Mapped[dict[str, Any]]
    __table_args__ = (Index("samples_by_device", "uid", "at"), Index("samples_by_time", "at"))


class RollupRow(Base):
    """Figures of one value in one minute or hour (`span_s` 60 or 3600, `at` its beginning)."""

    __tablename__ = "rollups"
    uid: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    span_s: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    count: Mapped[int] = mapped_column(Integer)
    total: Mapped[float]
    least: Mapped[float]
    most: Mapped[float]
    __table_args__ = (Index("rollups_by_time", "span_s", "at"), {"sqlite_with_rowid": False})


class Arrival(Base):
    """Ids of messages that have taken effect: a repeat is acknowledged and does nothing. Forgotten after `until`, when no
    device repeats it any more."""

    __tablename__ = "arrivals"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    uid: Mapped[str] = mapped_column(String(64))
    until: Mapped[float] = mapped_column(index=True)
    __table_args__ = ({"sqlite_with_rowid": False},)


class Mark(Base):
    """How far a work in batches has come, in the transaction that did it."""

    __tablename__ = "marks"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class EventRow(Base):
    """What happened, on a device or in the service (`uid` None)."""

    __tablename__ = "events"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    uid: Mapped[str | None] = mapped_column(String(64), index=True)
    kind: Mapped[str] = mapped_column(String(64))
    severity: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text, default="")
    facts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    at: Mapped[float]
    __table_args__ = (Index("events_by_tenant", "tenant_id", "id"), Index("events_by_time", "at"))


class Group(Base):
    """A saved query: its members are whatever matches when it is used."""

    __tablename__ = "groups"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(Name)
    query: Mapped[str] = mapped_column(Text)
    author: Mapped[str] = mapped_column(Name, default="")
    created_at: Mapped[float]
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)


class Rollout(Base):
    """A desired document on its way to a group, stage by stage. `plan` holds its stages and criteria."""

    __tablename__ = "rollouts"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(Name)
    shadow: Mapped[str] = mapped_column(String(16))
    document: Mapped[dict[str, Any]]
    query: Mapped[str] = mapped_column(Text)
    plan: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20), index=True)
    stage: Mapped[int] = mapped_column(Integer, default=0)
    stage_at: Mapped[float | None]
    reason: Mapped[str] = mapped_column(Text, default="")
    author: Mapped[str] = mapped_column(Name, default="")
    approved_by: Mapped[str] = mapped_column(Name, default="")
    created_at: Mapped[float]
    changed_at: Mapped[float]


class RolloutDevice(Base):
    """One device in a rollout: which generation it was given, what came of it, and what it had before."""

    __tablename__ = "rollout_devices"
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    uid: Mapped[str] = mapped_column(ForeignKey("devices.uid"), primary_key=True)
    stage: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(20), default="waiting")
    gen: Mapped[int] = mapped_column(Integer, default=0)
    before: Mapped[dict[str, Any] | None]
    checks: Mapped[dict[str, Any]] = mapped_column(default=dict)
    reason: Mapped[str] = mapped_column(Text, default="")
    at: Mapped[float]


class AlertRule(Base):
    __tablename__ = "alert_rules"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(Name)
    query: Mapped[str] = mapped_column(Text, default="")
    condition: Mapped[dict[str, Any]]
    severity: Mapped[str] = mapped_column(String(16), default="warning")
    deliver: Mapped[list[Any]] = mapped_column(default=list)
    enabled: Mapped[bool] = mapped_column(default=True)
    silenced_until: Mapped[float | None]
    created_at: Mapped[float]
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)


class Alert(Base):
    """A rule that holds for a device since `raised_at`; over when `cleared_at` is set."""

    __tablename__ = "alerts"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    rule_id: Mapped[str] = mapped_column(ForeignKey("alert_rules.id"), index=True)
    uid: Mapped[str | None] = mapped_column(String(64), index=True)
    severity: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)
    value: Mapped[float | None]
    raised_at: Mapped[float]
    cleared_at: Mapped[float | None]
    acknowledged_by: Mapped[str] = mapped_column(Name, default="")
    delivered: Mapped[list[Any]] = mapped_column(default=list)


class User(Base):
    """A person. `role` is viewer, operator or admin; `password` an argon2 hash, None for those who log in elsewhere."""

    __tablename__ = "users"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(Name, unique=True)
    role: Mapped[str] = mapped_column(String(16))
    password: Mapped[str | None] = mapped_column(Text)
    subject: Mapped[str | None] = mapped_column(String(256), unique=True)  # at the OpenID provider
    created_at: Mapped[float]
    disabled_at: Mapped[float | None]


class LoginSession(Base):
    """A login; the cookie holds the token, this its SHA-256."""

    __tablename__ = "login_sessions"
    digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    created_at: Mapped[float]
    expires_at: Mapped[float]
    address: Mapped[str] = mapped_column(String(64), default="")


class LoginTry(Base):
    """Wrong passwords of a name or an address, as its SHA-256: moments of the last ones. Forgotten after `until`."""

    __tablename__ = "login_tries"
    digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    tries: Mapped[list[Any]] = mapped_column(default=list)
    until: Mapped[float] = mapped_column(index=True)


class ApiToken(Base):
    """For programs: named, scoped by role, expiring; stored as a hash."""

    __tablename__ = "api_tokens"
    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(Name)
    role: Mapped[str] = mapped_column(String(16))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    author: Mapped[str] = mapped_column(Name, default="")
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class ClaimCode(Base):
    """A code with which a device may enrol once (`uses` left); stored as a hash."""

    __tablename__ = "claim_codes"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    digest: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    auto_accept: Mapped[bool] = mapped_column(default=False)
    cloud: Mapped[bool] = mapped_column(default=False)  # its devices get a key for the cloud engine too
    uid: Mapped[str | None] = mapped_column(String(64))  # of the device that gets a new key; None enrols a new device
    uses: Mapped[int] = mapped_column(Integer, default=1)
    author: Mapped[str] = mapped_column(Name, default="")
    created_at: Mapped[float]
    expires_at: Mapped[float]


class DeviceKey(Base):
    """A key of a device and its certificate: "pending" until accepted, "active", "replaced", "revoked" or "refused"."""

    __tablename__ = "device_keys"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    uid: Mapped[str] = mapped_column(String(64), index=True)
    state: Mapped[str] = mapped_column(String(16))
    ticket: Mapped[bytes | None] = mapped_column(LargeBinary(32), unique=True)
    csr: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(String(64), index=True)  # SHA-256 of the public key
    serial: Mapped[str | None] = mapped_column(String(64), index=True)
    certificate: Mapped[str | None] = mapped_column(Text)
    facts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    changed_at: Mapped[float]


class AuditRow(Base):
    """One action of somebody. `digest` is the SHA-256 of the row and the digest before it (`fleet/audit.py`)."""

    __tablename__ = "audit"
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float]
    actor: Mapped[str] = mapped_column(Name)
    via: Mapped[str] = mapped_column(String(40), default="")
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(200), default="")
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
