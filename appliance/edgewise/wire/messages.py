"""The messages of offloaded work, version 1: one vocabulary for both transports (docs/wire.md).

Unknown fields are kept and ignored. Every number is checked on arrival: a message that does not validate is never acted on.
Offsets count items of a stream: tokens of a `generate` job (characters where a back end knows no tokens), steps of a `diffuse`
job. They go on over attempts, so that a consumer that has items up to `offset` asks for the rest from any attempt.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from edgewise.wire.stream_log import Place

VERSION = 1
MAX_TOKENS = 2**24
MAX_TEXT = 64 * 1024**2
MAX_TTL_MS = 10 * 366 * 86_400_000

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Key = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:/@-]+$")]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Unit = Literal["tokens", "characters", "steps"]
Finish = Literal["stop", "length", "cancelled", "error", "done"]
State = Literal["queued", "running", "succeeded", "failed", "rejected", "expired", "cancelled"]
TERMINAL: frozenset[State] = frozenset({"succeeded", "failed", "rejected", "expired", "cancelled"})


class Message(BaseModel):
    """Base of all: frozen, and tolerant of fields of later versions."""

    model_config = ConfigDict(
        frozen=True, extra="allow", ser_json_bytes="base64"
    )  # bytes of later fields: CBOR has them


class Blob(Message):
    """Bytes that are kept beside the messages, by their hash: pictures, latents, long texts."""

    sha256: Sha256
    bytes: NonNegativeInt
    media: str = Field(default="application/octet-stream", max_length=100)


# --- what is asked ----------------------------------------------------------------------------------------------------------


class GenerateWork(Message):
    """Continue a prompt. `prompt` and `output` are token ids of the model `digest`; `text` is the same prompt as its chat
    template wrote it, sent where the back end reads text only (`Capability.reads`).

    `sampling` holds the fields of `engine.request.SamplingParams`; `output` are tokens that the consumer already has: the
    stream goes on at offset `len(output)`.
    """

    kind: Literal["generate"] = "generate"
    model: str = Field(min_length=1, max_length=200)
    digest: Digest | None = None
    prompt: tuple[Token, ...] = Field(default=(), max_length=MAX_TOKENS)
    text: str | None = Field(default=None, max_length=MAX_TEXT)
    output: tuple[Token, ...] = Field(default=(), max_length=MAX_TOKENS)
    sampling: dict[str, Any] = Field(default_factory=dict)
    constraint: str | None = Field(default=None, max_length=MAX_TEXT)


class DiffuseWork(Message):
    """Draw a picture. `params` holds the fields of `engine.pictures.request.DiffuseParams` but media, which are blobs.

    `want`: finished PNG files, or latents that the consumer decodes itself: a safetensors file with one tensor "latents"
    [channels, height, width], F16 (F32 where a number does not fit), and the digest of the model in its metadata ("made_by").
    """

    kind: Literal["diffuse"] = "diffuse"
    model: str = Field(min_length=1, max_length=200)
    digest: Digest | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    image: Blob | None = None
    mask: Blob | None = None
    want: Literal["png", "latents"] = "png"


Work: TypeAlias = Annotated[GenerateWork | DiffuseWork, Field(discriminator="kind")]


class JobRequest(Message):
    """One piece of offloaded work. The same `key` of the same tenant and device is the same job, however often it arrives.

    Attributes:
        key: Idempotency key, drawn by the device.
        device: Who asks, for the record and for results over MQTT.
        priority: Deadline class; "background" or "bulk" where nobody waits at the other end.
        privacy: Label of the input; a cloud refuses "private", whatever a device sends, and "site" unless it is of the site.
        ttl_ms: Milliseconds from receipt after which the job is `expired`; None never.
    """

    v: Literal[1] = 1
    key: Key
    device: str = Field(default="", max_length=128)
    work: Work
    priority: Literal["realtime", "interactive", "background", "bulk"] = "interactive"
    privacy: Literal["private", "site", "any"] = "any"
    ttl_ms: Annotated[int, Field(gt=0, le=MAX_TTL_MS)] | None = None


# --- what comes back --------------------------------------------------------------------------------------------------------


class Accepted(Message):
    """The job is in the table. `queue_s` is an estimate of the wait; `offset` counts items that its log holds already."""

    type: Literal["accepted"] = "accepted"
    id: str
    state: State = "queued"
    attempt: NonNegativeInt = 0
    offset: NonNegativeInt = 0
    queue_s: float | None = None


class Chunk(Message):
    """Items [offset, offset + count) of the stream, as attempt `attempt` made them; only the fields of its kind are set.

    `logprobs` has one entry a token: [logprob, [[id, logprob], ...]]. `facts` may carry the engine's account so far
    (`engine.request.RequestStats`) or the progress of a picture.
    """

    type: Literal["chunk"] = "chunk"
    attempt: PositiveInt
    offset: NonNegativeInt
    count: NonNegativeInt
    tokens: tuple[Token, ...] | None = None
    text: str | None = None
    logprobs: tuple[Any, ...] | None = None
    preview: Blob | None = None
    facts: dict[str, Any] | None = None

    @property
    def place(self) -> Place:
        """Where a consumer is that has it: the place after it."""
        return Place(self.attempt, self.offset + self.count)


class Usage(Message):
    """What the tenant is billed for, once per job."""

    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0
    steps: NonNegativeInt = 0
    busy_s: float = Field(default=0.0, ge=0)
    price: float = Field(default=0.0, ge=0)


class Final(Message):
    """The last record of a job.

    Attributes:
        attempt, count: Attempt that ended it; items in the whole stream.
        sha256: Of all items in order (`wire.stream_log.StreamHash`); None if the job failed.
        finish: Why it ended; "done" for pictures.
        blobs: The results that are not part of the stream.
        facts: The engine's account: `RequestStats` or that of a picture.
        numeric_class: Of the engine that made the last items.
        error_code, error_message, retryable: Set for "error" and for states other than "succeeded".
    """

    type: Literal["final"] = "final"
    state: State
    attempt: NonNegativeInt
    count: NonNegativeInt
    unit: Unit = "tokens"
    sha256: Sha256 | None = None
    finish: Finish
    usage: Usage = Usage()
    blobs: tuple[Blob, ...] = ()
    facts: dict[str, Any] | None = None
    numeric_class: str | None = None
    precision: dict[str, str] | None = None
    error_code: str | None = None
    error_message: str | None = None
    retryable: bool = False

    @property
    def place(self) -> Place:
        """The end of the stream."""
        return Place(self.attempt, self.count)


class Gone(Message):
    """The items asked for are no longer in the log: `first` is the lowest offset that is."""

    type: Literal["gone"] = "gone"
    first: NonNegativeInt


class Refused(Message):
    """The job was not taken; codes and statuses are those of the error tree."""

    type: Literal["refused"] = "refused"
    code: str
    message: str
    status: int = 400
    retry_after_s: float | None = None
    queue_s: float | None = None


Event: TypeAlias = Annotated[Accepted | Chunk | Final | Gone | Refused, Field(discriminator="type")]


class JobEvent(Message):
    """An event of job `key`, as it travels over MQTT; over HTTP the job is named by the request."""

    v: Literal[1] = 1
    key: Key
    event: Event


class JobControl(Message):
    """What a consumer says of its job. `after` is the place that it has reached, as `attempt.offset`; `credit` is how many chunks
    behind it may be on their way at once.

    - resume: send what follows `after`; - ack: everything up to `after` has arrived, `final` too if `done`;
    - grant: everything up to `after` has been read; - cancel: stop.
    """

    v: Literal[1] = 1
    key: Key
    op: Literal["resume", "ack", "grant", "cancel"]
    after: str = Field(default="0.0", pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$")
    credit: NonNegativeInt = 0
    done: bool = False


class JobResult(Message):
    """What came of a deferred job, as a device delivers it: the body of its webhooks, sent again until it is acknowledged.

    Attributes:
        type: "edgewise.job." and the state.
        timestamp: When it ended, in seconds since the epoch by the device's clock.
        data: The job, as `GET /edgewise/v1/jobs/{id}` of the device shows it.
    """

    v: Literal[1] = 1
    type: str = Field(max_length=100)
    timestamp: float
    data: dict[str, Any]


# --- what a cloud says of itself ---------------------------------------------------------------------------------------------


class Capability(Message):
    """A model that the cloud answers with. `reads` says whether work arrives as token ids or as text.

    `speed` and `prefill` are measured items a second of one stream, None before anything was measured; `price` is in
    the tenant's money per 1,000 items, prompt and answer.
    """

    model: str
    digest: str | None = None
    kind: Literal["generate", "diffuse"] = "generate"
    reads: Literal["tokens", "text"] = "tokens"
    context: int | None = None
    numeric_class: str | None = None
    precision: dict[str, str] | None = None
    speed: float | None = None
    prefill: float | None = None
    price_in: float = 0.0
    price_out: float = 0.0
    joules: float | None = None


class CloudInfo(Message):
    """`GET /edgewise/v1/cloud`: what can be had, and how long the queue is.

    Attributes:
        tenant: Name of the key that asked.
        device: The only device that this key may be used by; None for any.
        residency: Tag of where data are computed, as "eu".
        site: It belongs to the site of its devices, and takes what is labelled "site".
        queue_s: Estimated wait of a new job by class.
    """

    v: Literal[1] = 1
    name: str
    tenant: str
    device: str | None = None
    residency: str = ""
    site: bool = False
    models: tuple[Capability, ...] = ()
    queue_s: dict[str, float] = Field(default_factory=dict)
    max_request_bytes: int = 8 * 1024**2
    max_blob_bytes: int = 64 * 1024**2
