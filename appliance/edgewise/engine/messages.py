"""The messages between the service and its engine process, and their bytes (MessagePack, typed on both sides).

Each message is small and immutable. Those that belong to one life of the engine carry its `epoch`, so that a message of a life
that has ended cannot be taken for one of the present life.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from edgewise.core.errors import EdgewiseError, EngineFault, InvalidRequest, error_class
from edgewise.engine.alignment import Alignment
from edgewise.engine.api import CacheTier, EngineInfo, EngineStats, MemoryReport
from edgewise.engine.config import EngineConfig
from edgewise.engine.encoders.config import EncoderConfig
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest, EncoderInfo
from edgewise.engine.pictures.config import PictureConfig
from edgewise.engine.pictures.request import DiffuseChunk, DiffuseParams, DiffuseRequest, PictureInfo
from edgewise.engine.request import GenerateRequest, Priority, SamplingParams, TokenChunk
from edgewise.engine.speech import Speech
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.multimodal.media import Media

T = TypeVar("T")
LARGE_BYTES = 1 << 20
"""Contents of this size are sent beside their message."""
PageAction = Literal["held", "export", "import", "adopt", "forget"]
PageForm = Literal["exact", "int4"]
"""Of pages on their way: as they are stored, or rounded to 4 bits (`engine.tiers.int4`)."""


class ProtocolError(EngineFault):
    """Bytes from the other side are not a message of this protocol version."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the class name is the tag on the wire."""


# --- service to engine -----------------------------------------------------------------------------------------------------


class Start(Message, frozen=True):
    """First message: build the engine. `heartbeat_s` is the interval of heartbeats in seconds."""

    epoch: int
    config: EngineConfig
    heartbeat_s: float


class StartPictures(Message, frozen=True):
    """`Start` of an engine that draws pictures."""

    epoch: int
    config: PictureConfig
    heartbeat_s: float


class StartEncoder(Message, frozen=True):
    """`Start` of an encoder's engine."""

    epoch: int
    config: EncoderConfig
    heartbeat_s: float


class SubmitEncode(Message, frozen=True):
    """An `EncodeRequest`."""

    id: str
    content: bytes
    options: dict[str, Any]
    skip: int
    key: str
    lead_s: float
    priority: Priority
    deadline_s: float | None

    @classmethod
    def of(cls, request: EncodeRequest) -> SubmitEncode:
        return cls(
            id=request.id,
            content=request.content,
            options=dict(request.options),
            skip=request.skip,
            key=request.key,
            lead_s=request.lead_s,
            priority=request.priority,
            deadline_s=request.deadline_s,
        )

    def request(self) -> EncodeRequest:
        return EncodeRequest(
            id=self.id,
            content=self.content,
            options=self.options,
            skip=self.skip,
            key=self.key,
            lead_s=self.lead_s,
            priority=self.priority,
            deadline_s=self.deadline_s,
        )


class SubmitPicture(Message, frozen=True):
    """A `DiffuseRequest`."""

    id: str
    params: DiffuseParams
    decode: bytes | None
    key: str
    priority: Priority
    deadline_s: float | None

    @classmethod
    def of(cls, request: DiffuseRequest) -> SubmitPicture:
        return cls(
            id=request.id,
            params=request.params,
            decode=request.decode,
            key=request.key,
            priority=request.priority,
            deadline_s=request.deadline_s,
        )

    def request(self) -> DiffuseRequest:
        return DiffuseRequest(
            id=self.id,
            params=self.params,
            decode=self.decode,
            key=self.key,
            priority=self.priority,
            deadline_s=self.deadline_s,
        )


class Submit(Message, frozen=True):
    """A `GenerateRequest` with its token ids packed as unsigned 32-bit numbers (`pack`).

    The samples of media make it large; it then travels in shared memory, within the transport's limit.
    """

    id: str
    prompt: bytes
    output: bytes
    sampling: SamplingParams
    salt: str
    key: str
    lead_s: float
    priority: Priority
    deadline_s: float | None
    constraint: str | None
    media: tuple[Media, ...] = ()
    speech: Speech | None = None
    adapter: AdapterFiles | None = None
    whole: bool = False
    alignment: Alignment | None = None

    @classmethod
    def of(cls, request: GenerateRequest) -> Submit:
        """Raise `InvalidRequest` if a token id is no unsigned 32-bit number."""
        return cls(
            id=request.id,
            prompt=pack(request.prompt, "prompt"),
            output=pack(request.output, "output"),
            sampling=request.sampling,
            salt=request.salt,
            key=request.key,
            lead_s=request.lead_s,
            priority=request.priority,
            deadline_s=request.deadline_s,
            constraint=request.constraint,
            media=request.media,
            speech=request.speech,
            adapter=request.adapter,
            whole=request.whole,
            alignment=request.alignment,
        )

    def request(self) -> GenerateRequest:
        """Raise `ProtocolError` if the packed ids are cut."""
        return GenerateRequest(
            id=self.id,
            prompt=unpack(self.prompt),
            output=unpack(self.output),
            sampling=self.sampling,
            salt=self.salt,
            key=self.key,
            lead_s=self.lead_s,
            priority=self.priority,
            deadline_s=self.deadline_s,
            constraint=self.constraint,
            media=self.media,
            speech=self.speech,
            adapter=self.adapter,
            whole=self.whole,
            alignment=self.alignment,
        )


class Cancel(Message, frozen=True):
    id: str


class StatsQuery(Message, frozen=True):
    pass


class MemoryQuery(Message, frozen=True):
    pass


class ClearCache(Message, frozen=True):
    """Forget cached pages of one tier ("device", "host", "disk"), or of all."""

    tier: CacheTier | None


class PageOrder(Message, frozen=True):
    """Something to do with named KV pages, for a hand-over between appliances (`engine.handover`).

    `held` counts those at the start of `names` that are there, `export` returns contents, `import` keeps `contents` in the
    quarantine, `adopt` compares and gives them their `lasting` names, `forget` ends it. Names are joined, 32 bytes each.
    `form` is that of `contents`, and of what `adopt` compares.
    """

    id: int
    action: PageAction
    names: bytes
    lasting: bytes = b""
    contents: tuple[bytes, ...] = ()
    form: PageForm = "exact"


class Limit(Message, frozen=True):
    """Until the next one: begin no sequence while so many are in the batch; draw pictures in this share of the time (0 to 1)."""

    max_running: int
    pace: float


class Stop(Message, frozen=True):
    """Release everything and exit 0; requests still in work are dropped."""


# --- engine to service -----------------------------------------------------------------------------------------------------


class Progress(Message, frozen=True):
    """Loading goes on: stage and fraction done."""

    stage: str
    fraction: float


class Ready(Message, frozen=True):
    epoch: int
    info: EngineInfo


class PicturesReady(Message, frozen=True):
    """`Ready` of an engine that draws pictures."""

    epoch: int
    info: PictureInfo


class EncoderReady(Message, frozen=True):
    """`Ready` of an encoder's engine."""

    epoch: int
    info: EncoderInfo


class Accepted(Message, frozen=True):
    epoch: int
    id: str


class Refused(Message, frozen=True):
    """The core refused a request with an `EdgewiseError`."""

    epoch: int
    id: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    def error(self) -> EdgewiseError:
        return error_from(self.code, self.message, param=self.param, retry_after_s=self.retry_after_s)


class Chunks(Message, frozen=True):
    epoch: int
    chunks: tuple[TokenChunk, ...]


class PictureChunks(Message, frozen=True):
    epoch: int
    chunks: tuple[DiffuseChunk, ...]


class EncodeChunks(Message, frozen=True):
    epoch: int
    chunks: tuple[EncodeChunk, ...]


class StatsReply(Message, frozen=True):
    stats: EngineStats


class MemoryReply(Message, frozen=True):
    memory: MemoryReport


class CacheCleared(Message, frozen=True):
    """How many pages were forgotten, by tier."""

    pages: dict[str, int]


class PageReply(Message, frozen=True):
    """The answer to the `PageOrder` with this id."""

    id: int
    count: int
    contents: tuple[bytes, ...] = ()


class Notice(Message, frozen=True):
    """Something inside the engine that operators should know: a stable word and a sentence."""

    kind: str
    message: str


class Heartbeat(Message, frozen=True):
    """Sent by a thread of its own, also while a step runs.

    `steps` counts finished turns of the loop; `step_started_ago` is the age of the running turn in seconds, None when idle.
    """

    epoch: int
    steps: int
    step_started_ago: float | None
    rss_bytes: int


class Fault(Message, frozen=True):
    """Last words of a failing engine: an error code of the tree, its message, and the traceback for the log."""

    code: str
    message: str
    traceback: str


AnyConfig: TypeAlias = EngineConfig | PictureConfig | EncoderConfig
ToEngine: TypeAlias = (
    Start | StartPictures | StartEncoder | Submit | SubmitPicture | SubmitEncode | Cancel | StatsQuery | MemoryQuery | ClearCache
    | PageOrder | Limit | Stop
)  # fmt: skip
ToService: TypeAlias = (
    Progress | Ready | PicturesReady | EncoderReady | Accepted | Refused | Chunks | PictureChunks | EncodeChunks | StatsReply
    | MemoryReply | CacheCleared | PageReply | Notice | Heartbeat | Fault
)  # fmt: skip


def start_message(epoch: int, config: AnyConfig, heartbeat_s: float) -> Start | StartPictures | StartEncoder:
    """The first message to an engine of the configuration's kind."""
    if isinstance(config, PictureConfig):
        return StartPictures(epoch=epoch, config=config, heartbeat_s=heartbeat_s)
    if isinstance(config, EncoderConfig):
        return StartEncoder(epoch=epoch, config=config, heartbeat_s=heartbeat_s)
    return Start(epoch=epoch, config=config, heartbeat_s=heartbeat_s)


# --- bytes -----------------------------------------------------------------------------------------------------------------


def _encode_hook(value: Any) -> bytes:
    if isinstance(value, Path):
        return os.fsencode(value)  # a path is bytes on Linux and need not be UTF-8
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def _decode_hook(kind: type, value: Any) -> Path:
    if kind is Path and isinstance(value, bytes):
        return Path(os.fsdecode(value))
    raise NotImplementedError(f"cannot decode {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine, dec_hook=_decode_hook)
_to_service: msgspec.msgpack.Decoder[ToService] = msgspec.msgpack.Decoder(ToService, dec_hook=_decode_hook)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def apart(message: Message) -> tuple[Message, tuple[bytes, ...]]:
    """A message without its large contents, and these, which are sent beside it: nobody copies them to encode them."""
    if isinstance(message, Submit) and sum(len(one.content) for one in message.media) >= LARGE_BYTES:
        bare = tuple(replace(one, content=b"") for one in message.media)
        return msgspec.structs.replace(message, media=bare), tuple(one.content for one in message.media)
    return message, ()


def together(message: T, contents: Sequence[bytes]) -> T:
    """The reverse of `apart`; raises `ProtocolError` if the contents are not this message's."""
    if not isinstance(message, Submit) or len(contents) != len(message.media):
        raise ProtocolError(f"{len(contents)} contents on the engine socket belong to no message.")
    media = tuple(replace(one, content=content) for one, content in zip(message.media, contents, strict=True))
    return msgspec.structs.replace(message, media=media)


def decode_to_engine(payload: bytes) -> ToEngine:
    """Raise `ProtocolError` if the payload is no message for the engine."""
    return _decode(_to_engine, payload)


def decode_to_service(payload: bytes) -> ToService:
    """Raise `ProtocolError` if the payload is no message for the service."""
    return _decode(_to_service, payload)


def _decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, NotImplementedError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The engine socket carried a malformed message: {error}.") from error


def pack(tokens: Iterable[int], param: str) -> bytes:
    """Token ids as unsigned 32-bit numbers in machine order (both ends are one machine); ten times faster than a list."""
    try:
        return array("I", tokens).tobytes()
    except (OverflowError, TypeError) as error:
        raise InvalidRequest(f"'{param}' holds a value that is no token id: {error}.", param=param) from error


def unpack(packed: bytes) -> tuple[int, ...]:
    if len(packed) % 4:
        raise ProtocolError(f"Packed token ids have {len(packed)} bytes, no multiple of 4.")
    tokens = array("I")
    tokens.frombytes(packed)
    return tuple(tokens)


# --- errors ----------------------------------------------------------------------------------------------------------------


def error_from(
    code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None
) -> EdgewiseError:
    """The error that the engine raised, rebuilt from its code; a code that the tree does not know becomes `EngineFault`."""
    kind = error_class(code)
    if kind is None:
        return EngineFault(f"{message} (engine code '{code}')", param=param, retry_after_s=retry_after_s)
    return kind(message, param=param, retry_after_s=retry_after_s)
