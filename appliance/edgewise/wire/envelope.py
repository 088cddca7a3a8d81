"""What stands around the body of every message over MQTT: who, which, in answer to what, and until when.

Everything that a receiver needs is in the payload; MQTT's own properties (expiry, correlation) only mirror it, since a
broker may drop them.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from edgewise.core.errors import BadMessage
from edgewise.wire import codec
from edgewise.wire.messages import VERSION, Message

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")

Ulid = Annotated[str, Field(pattern=f"^{_ULID.pattern}$")]
BodyT = TypeVar("BodyT", bound=BaseModel)


class VersionRefused(BadMessage):
    """A message of a later major version than this software speaks; answered `rejected: version` where it can be."""

    code = "version"


class Envelope(Message):
    """Around a body.

    Attributes:
        id: Of this message, the same when it is sent again.
        ep, seq: Number of the sender's session, stored before each start, and of the message in it: together they order what one
            sender says, whatever a broker does to it.
        ts: The sender's wall clock in seconds, for people only; no decision looks at it.
        ttl_ms: Milliseconds from receipt after which it is void; None never.
        key: Idempotency key of what it asks for.
        re: Id of the message that it answers.
        to: Topic that answers are wanted on, where that is not the usual one.
        tp: `traceparent` of the trace that it belongs to.
    """

    v: PositiveInt = VERSION
    id: Ulid
    ep: NonNegativeInt = 0
    seq: NonNegativeInt = 0
    ts: float | None = None
    ttl_ms: PositiveInt | None = None
    key: str | None = Field(default=None, max_length=128)
    re: Ulid | None = None
    to: str | None = Field(default=None, max_length=256)
    tp: str | None = Field(default=None, max_length=64)
    body: dict[str, Any] = Field(default_factory=dict)

    @property
    def place(self) -> tuple[int, int]:
        """Orders the messages of one sender."""
        return self.ep, self.seq

    def read(self, kind: type[BodyT]) -> BodyT:
        """The body as a message of a kind.

        Raises:
            BadMessage: It is none.
        """
        try:
            return kind.model_validate(self.body)
        except ValidationError as error:
            raise BadMessage(f"A message is no {kind.__name__}: {_first_problem(error)}") from error


class Sealer:
    """Makes the envelopes of one sender in one session; `ep` comes from `wire.mqtt.session`."""

    def __init__(self, ep: int) -> None:
        self.ep = ep
        self._seq = itertools.count(1)

    def seal(
        self,
        body: BaseModel,
        *,
        id: str | None = None,
        re: str | None = None,
        key: str | None = None,
        ttl_ms: int | None = None,
        to: str | None = None,
        tp: str | None = None,
    ) -> Envelope:
        """A new envelope around `body`; `id` is that of a message that is sent again."""
        return Envelope(
            id=id or new_ulid(),
            ep=self.ep,
            seq=next(self._seq),
            ts=round(time.time(), 3),
            ttl_ms=ttl_ms,
            key=key,
            re=re,
            to=to,
            tp=tp,
            body=body.model_dump(exclude_none=True),
        )


def encode(envelope: Envelope, *, binary: bool = False) -> bytes:
    """Bytes of a message: JSON, or CBOR with `binary`, which bodies that hold bytes need."""
    plain = envelope.model_dump(exclude_none=True)
    return codec.encode_cbor(plain) if binary else codec.encode_json(plain)


def decode(payload: bytes, limits: codec.Limits = codec.DEFAULT) -> Envelope:
    """The message in `payload`.

    Raises:
        VersionRefused: It is of a later major version.
        BadMessage: It is malformed or beyond a limit.
    """
    plain = codec.decode(payload, limits)
    version = plain.get("v", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise VersionRefused(f"A message has version {version}; this software speaks up to {VERSION}. Update it.")
    try:
        return Envelope.model_validate(plain)
    except ValidationError as error:
        raise BadMessage(f"A message has no proper envelope: {_first_problem(error)}") from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place[:80]}: {problem['msg'][:200]}"


# --- names of messages --------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_last = 0


def is_ulid(text: object) -> bool:
    return isinstance(text, str) and _ULID.fullmatch(text) is not None


def new_ulid() -> str:
    """A new ULID (48 bits of milliseconds, 80 random bits): unique, and increasing within this process even if the clock is
    set back or stands still."""
    global _last
    fresh = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    with _lock:
        _last = fresh = max(fresh & (2**128 - 1), _last + 1)
    return "".join(_CROCKFORD[(fresh >> shift) & 31] for shift in range(125, -1, -5))
