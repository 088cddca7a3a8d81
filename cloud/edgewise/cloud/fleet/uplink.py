"""One message of a device, read and checked: what handlers of `ingest.Ingest` get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from edgewise.core.errors import BadMessage
from edgewise.wire import topics
from edgewise.wire.envelope import Envelope, decode
from edgewise.wire.fleet import SHADOWS, Ack, Birth, Event, Live, LogPart, Reported, Sync, Telemetry

BodyT = TypeVar("BodyT", bound=BaseModel)

KINDS: Mapping[str, type[BaseModel]] = {
    "live": Live,
    "birth": Birth,
    "sync": Sync,
    "rep": Reported,
    "ack": Ack,
    "tel": Telemetry,
    "evt": Event,
    "log": LogPart,
}
"""Level of the topic after `up/`, and what its messages say."""
UNKEPT = ("live", "birth", "sync")
"""Said anew at each connect: no outbox keeps it, and it is not acknowledged."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message as it came. `at` is this service's clock; `retained`: it was kept by the broker, so it proves no presence."""

    topic: str
    payload: bytes
    retained: bool
    at: float


@dataclass(frozen=True, slots=True)
class Uplink:
    """Attributes:
    key: What follows the kind in its topic: a shadow, a command's id, a group, a severity; "" where nothing does.
    """

    uid: str
    kind: str
    key: str
    envelope: Envelope
    body: BaseModel
    at: float
    retained: bool

    @property
    def kept(self) -> bool:
        """Whether the device may keep it until it is acknowledged; a piece of a streamed answer it does not."""
        return self.kind not in UNKEPT and not (isinstance(self.body, Ack) and self.body.text is not None)

    def read(self, kind: type[BodyT]) -> BodyT:
        """The body, known to be of this kind by the registration of the handler."""
        assert isinstance(self.body, kind)
        return self.body


class UnreadableBody(BadMessage):
    """The envelope can be read and the body cannot: it is acknowledged, since the device would send it for ever."""

    def __init__(self, message: str, uid: str, kind: str, id: str) -> None:
        super().__init__(message)
        self.uid, self.kind, self.id = uid, kind, id


def kind_of(topic: str) -> tuple[str, str]:
    """(uid, kind) of a topic; raises `BadMessage` if it is none of a device's uplinks."""
    parsed = topics.parse(topic)
    if parsed.way != "up" or parsed.rest[0] not in KINDS:
        raise BadMessage(f"{topic[:100]!r} is no uplink of a device.")
    return parsed.uid, parsed.rest[0]


def read_uplink(arrived: Arrived) -> Uplink:
    """Raises `BadMessage`; `UnreadableBody` where it is known which message that was."""
    parsed = topics.parse(arrived.topic)
    kind, *rest = parsed.rest
    if parsed.way != "up" or kind not in KINDS or len(rest) != (0 if kind in UNKEPT else 1):
        raise BadMessage(f"{arrived.topic[:100]!r} is no uplink of a device.")
    envelope = decode(arrived.payload)
    key = rest[0] if rest else ""
    try:
        if kind == "rep" and key not in SHADOWS:
            raise BadMessage(f"{key!r} is no shadow: {', '.join(SHADOWS)}")
        body = envelope.read(KINDS[kind])
    except BadMessage as error:
        raise UnreadableBody(error.message, parsed.uid, kind, envelope.id) from error
    return Uplink(parsed.uid, kind, key, envelope, body, arrived.at, arrived.retained)
