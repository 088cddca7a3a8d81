"""The messages between a device's agent and the fleet service, version 1 (docs/wire.md): bodies of envelopes over MQTT.

The envelope carries what is common: `id` (the command's, the row's in the outbox), `ep` and `seq` that order one sender's
messages, `ttl_ms`, `key`, `re`. Unknown fields are kept and ignored. Times are durations: no clock of a device is believed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from edgewise.wire.envelope import Ulid
from edgewise.wire.messages import Message

SHADOWS = ("config", "models", "software", "policy")
"""What is desired of a device, each a document with a generation of its own."""
LANES = ("control", "update", "infer")
"""Order of commands holds within a lane only."""

Shadow = Literal["config", "models", "software", "policy"]
Op = Annotated[str, Field(pattern=r"^[a-z]{1,24}(\.[a-z]{1,24})?$")]
Severity = Literal["info", "warning", "critical"]
CommandState = Literal[
    "queued",
    "sent",
    "accepted",
    "running",
    "succeeded",
    "failed",
    "rejected",
    "expired",
    "cancelled",
    "superseded",
    "timed-out",
]
ENDED: frozenset[CommandState] = frozenset(
    {"succeeded", "failed", "rejected", "expired", "cancelled", "superseded", "timed-out"}
)
"""States of a command that never change again."""


# --- presence: up/live, up/birth, up/sync ------------------------------------------------------------------------------------


class Live(Message):
    """Retained, and the last will. Valid only if its envelope's `ep` is not below that of the last "online"."""

    state: Literal["online", "draining", "offline"]
    reason: str = Field(default="", max_length=200)
    expected_s: NonNegativeFloat | None = None  # an offline that was announced: how long it is meant to last


class ModelState(Message):
    """A model on a device; `digest` is its content, "sha256:..." ."""

    name: str = Field(min_length=1, max_length=200)
    digest: str | None = None
    role: str = Field(default="", max_length=40)
    bytes: NonNegativeInt = 0
    loaded: bool = False
    state: Literal["ready", "loading", "pulling", "failed", "removed"] = "ready"
    reason: str = Field(default="", max_length=400)


class Birth(Message):
    """Retained; sent after each connect, before `Sync`.

    Attributes:
        version: Of the software. `schema` is that of these messages.
        boot: Changes with each start of the machine.
        started: Changes with each start of the service.
        ops: Commands that it understands.
        hardware: What `edgewise doctor` finds: family, cpu, cores, memory_bytes, accelerators, os, power modes.
        broker: Result of the probe: what the broker can do.
    """

    version: str = Field(max_length=40)
    schema_version: PositiveInt = 1
    boot: str = Field(max_length=64)
    started: str = Field(max_length=64)
    name: str = Field(default="", max_length=128)
    ops: tuple[Op, ...] = ()
    hardware: dict[str, Any] = Field(default_factory=dict)
    models: tuple[ModelState, ...] = Field(default=(), max_length=1000)
    limits: dict[str, Any] = Field(default_factory=dict)
    broker: dict[str, Any] = Field(default_factory=dict)
    certificate_days: float | None = None  # left of the device's certificate, by the device's own clock floor


class Sync(Message):
    """After each connect: where the device stands. The fleet answers with what it lacks: desired documents, open commands.

    Attributes:
        gens: Last generation applied or refused, by shadow.
        open: Commands that have not ended on the device.
        outbox: Rows that wait for the fleet's acknowledgement, by class.
    """

    gens: dict[Shadow, NonNegativeInt] = Field(default_factory=dict)
    open: tuple[Ulid, ...] = Field(default=(), max_length=1000)
    outbox: dict[str, NonNegativeInt] = Field(default_factory=dict)


class HostLive(Message):
    """`host/live`, retained, and the fleet's last will: devices keep bulk telemetry while it is away."""

    state: Literal["online", "offline"]
    name: str = Field(default="", max_length=128)


# --- shadows: dn/des/<shadow>, up/rep/<shadow> --------------------------------------------------------------------------------


class Desired(Message):
    """The whole document that is desired, retained. Applied if `gen` is above the last one seen, refused whole if it is bad.

    Documents:
        config: Dotted settings and their values, as `{"placement.policy": "prefer-local"}`; what is not named is left as it is.
        models: `{"models": [{"name", "source", "digest", "load": bool}], "remove_others": bool}`.
        software: `{"version", "url", "sha256", "metadata"}`; refused as unsigned until signed metadata exists.
        policy: `{"telemetry": {"period_s", "groups"}, "budgets": {"daily_bytes", ...}, "labels": {...}, "alerts": {...}}`.
    """

    gen: PositiveInt
    document: dict[str, Any]
    clear: bool = False  # an empty document is meant; without it, one after another is taken for a fault of the fleet
    author: str = Field(default="", max_length=128)


class LocalEdit(Message):
    """A value that somebody at the device set, and that the fleet did not: shown apart, kept until the fleet overrides it."""

    path: str = Field(max_length=200)
    value: Any = None
    author: str = Field(default="", max_length=128)
    age_s: NonNegativeFloat | None = None


class Reported(Message):
    """What is in force. `seen` is the newest generation that arrived, `applied` the one in force (last known good).

    "pending" is on its way (a pull, a restart), "refused" names why in `reason`; then `applied` is below `seen`.
    """

    seen: NonNegativeInt = 0
    applied: NonNegativeInt = 0
    state: Literal["applied", "pending", "refused"]
    reason: str = Field(default="", max_length=2000)
    document: dict[str, Any] = Field(default_factory=dict)
    edits: tuple[LocalEdit, ...] = Field(default=(), max_length=1000)


# --- commands: dn/cmd/<op>, dn/ctl/<id>, up/ack/<id> --------------------------------------------------------------------------


class Command(Message):
    """`dn/cmd/<op>`, never retained. Its id is the envelope's, the same when it is sent again; `ttl_ms` of the envelope is the
    time to its acceptance, `total_s` and `step_s` are the two timers after it."""

    op: Op
    args: dict[str, Any] = Field(default_factory=dict)
    total_s: NonNegativeFloat | None = None
    step_s: NonNegativeFloat | None = None


class Control(Message):
    """`dn/ctl/<id>`: cancel asks for an end; extend gives more time; grant lets so many further chunks of `infer` come."""

    do: Literal["cancel", "extend", "grant"]
    extend_s: NonNegativeFloat = 0.0
    credit: NonNegativeInt = 0


class Ack(Message):
    """`up/ack/<id>`: a change of a command's state, or a piece of the answer of `infer`.

    Attributes:
        state: After "accepted" the command is on the device's disk and will end in one of `ENDED`, whatever happens.
        step, percent: Of "running", derived from facts.
        code, reason, retryable: Why it failed or was refused; codes are those of the error tree.
        offset, text: A piece of an answer: it begins after `offset` pieces.
        result: Of one that ended.
    """

    state: CommandState
    step: str = Field(default="", max_length=200)
    percent: Annotated[float, Field(ge=0, le=100)] | None = None
    code: str = Field(default="", max_length=100)
    reason: str = Field(default="", max_length=2000)
    retryable: bool = False
    offset: NonNegativeInt | None = None
    text: str | None = Field(default=None, max_length=64 * 1024)
    result: dict[str, Any] | None = None


# --- what flows up: up/tel/<group>, up/evt/<severity>, up/log/<id> ------------------------------------------------------------


class Sample(Message):
    """Values of one moment: `before_ms` before the last sample of its batch. Names and units: docs/telemetry.md."""

    before_ms: NonNegativeInt = 0
    values: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.]{0,63}$")], float]


class Telemetry(Message):
    """Samples of a group. `age_ms` is how old the last one was when this was sent; each new try says it anew."""

    group: str = Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")
    age_ms: NonNegativeInt = 0
    samples: tuple[Sample, ...] = Field(min_length=1, max_length=1000)


class Event(Message):
    """Something that happened: the device's own events, alarms of its governor, a clone at the broker."""

    kind: str = Field(min_length=1, max_length=64)
    severity: Severity = "info"
    message: str = Field(default="", max_length=2000)
    facts: dict[str, Any] = Field(default_factory=dict)
    age_ms: NonNegativeInt = 0


class LogPart(Message):
    """Part `index` of what the command `logs` asked for."""

    index: NonNegativeInt
    last: bool = False
    lines: tuple[str, ...] = Field(default=(), max_length=5000)


class Received(Message):
    """`dn/ctl/outbox`: the fleet has these rows on its disk; the device may forget them."""

    ids: tuple[Ulid, ...] = Field(max_length=1000)


Up: TypeAlias = Live | Birth | Sync | Reported | Ack | Telemetry | Event | LogPart


# --- enrolment, over HTTPS to the fleet service --------------------------------------------------------------------------------


class EnrolRequest(Message):
    """`POST /fleet/v1/enrol`. The key pair is the device's own: only the request for a certificate (PEM) leaves it."""

    code: str = Field(min_length=8, max_length=64)
    csr: str = Field(max_length=8192)
    name: str = Field(default="", max_length=128)
    hardware: dict[str, Any] = Field(default_factory=dict)


class Enrolled(Message):
    """The answer. "pending": an administrator must accept it; ask again with `ticket` after `retry_s`.

    `certificate` and `ca` are PEM; `mqtt_host`, `mqtt_port`, `mqtt_tls` say where the broker is, `cloud_url` and `cloud_key`
    which cloud engine it may use, if any. `renew_s` is when to ask for the next certificate.
    """

    state: Literal["accepted", "pending", "refused"]
    uid: str = ""
    ticket: str = ""
    retry_s: float | None = None
    reason: str = ""
    certificate: str | None = None
    ca: str | None = None
    mqtt_host: str | None = None
    mqtt_port: int | None = None
    mqtt_tls: bool = False
    cloud_url: str | None = None
    cloud_key: str | None = None
    renew_s: NonNegativeFloat | None = None


class EnrolPoll(Message):
    """`POST /fleet/v1/enrol/status`, answered by `Enrolled`: has an administrator decided?"""

    ticket: str = Field(min_length=8, max_length=64)


class RenewalQuestion(Message):
    """`POST /fleet/v1/enrol/challenge`: is it time? `fingerprint` is the SHA-256 of the device's public key (DER), in hex."""

    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")


class Challenge(Message):
    """The answer. A renewal within some minutes must sign `nonce`; it is due in `renew_s`, by the fleet's clock alone."""

    nonce: str = Field(min_length=16, max_length=200)
    renew_s: NonNegativeFloat


class RenewRequest(Message):
    """`POST /fleet/v1/enrol/renew`, answered by `Enrolled`; an expired certificate may still be renewed.

    `signature` (base64) is made by the key of `fingerprint`, ECDSA with SHA-256, over `renewal_text(nonce, csr)`.
    """

    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    nonce: str = Field(min_length=16, max_length=200)
    csr: str = Field(max_length=8192)
    signature: str = Field(max_length=1024)


def renewal_text(nonce: str, csr: str) -> bytes:
    """What a device signs to prove that it has the key that it renews."""
    return b"edgewise renewal\0" + nonce.encode() + b"\0" + csr.encode()


# --- what a rollout asks of a device before a model goes live: the command `model.trial` ---------------------------------------


class TrialArgs(Message):
    """Run a candidate beside the model in use on the device's recent inputs. It is pulled if it is not there, and not served.

    `prompt` and `tokens` bound the work: so many recent inputs, so many greedy tokens each.
    """

    candidate: str = Field(min_length=1, max_length=200)
    source: str | None = Field(default=None, max_length=2000)
    digest: str | None = Field(default=None, max_length=100)
    baseline: str | None = Field(default=None, max_length=200)
    prompts: PositiveInt = 8
    tokens: PositiveInt = 32


class TrialResult(Message):
    """Scores only; no text leaves the device.

    Attributes:
        prompts: Inputs that were run; of the device's own, or of a built-in list where it has none (`own` false).
        agreement: Share of positions at which the candidate's most likely token is the baseline's, on the baseline's text;
            None where no other model is in use.
        tokens_per_s, baseline_tokens_per_s: Decode speed of one stream.
        joules_per_token, baseline_joules_per_token: None where power is not measured.
    """

    prompts: NonNegativeInt
    own: bool = False
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None
    tokens_per_s: NonNegativeFloat
    baseline_tokens_per_s: NonNegativeFloat | None = None
    joules_per_token: NonNegativeFloat | None = None
    baseline_joules_per_token: NonNegativeFloat | None = None
