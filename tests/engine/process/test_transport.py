from __future__ import annotations

import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core import errors
from edgewise.core.errors import EngineFault, InvalidRequest, PayloadTooLarge, QueueFull
from edgewise.engine import transport
from edgewise.engine.config import EngineConfig
from edgewise.engine.messages import (
    LARGE_BYTES,
    Cancel,
    Message,
    ProtocolError,
    Refused,
    Start,
    Submit,
    ToEngine,
    apart,
    decode_to_engine,
    decode_to_service,
    encode,
    error_from,
    unpack,
)
from edgewise.engine.request import GenerateRequest, Priority, SamplingParams
from edgewise.engine.shm import seal, unseal
from edgewise.engine.transport import (
    HEADER,
    INLINE,
    MAGIC,
    MAX_INLINE,
    MAX_PAYLOAD,
    MEMFD,
    PARTS,
    VERSION,
    Frame,
    FrameParser,
    FrameReader,
    FrameWriter,
    Parts,
    PeerClosed,
    frame_of,
)
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.media import Media

Pair = tuple[FrameWriter, FrameReader[ToEngine], socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    writer, reader = FrameWriter(left), FrameReader(right, decode_to_engine)
    yield writer, reader, left, right
    writer.close()
    reader.close()
    left.close()
    right.close()


def send_all(writer: FrameWriter, *messages: Message | Frame) -> bool:
    return writer.flush(iter_messages(deque(messages)))


def iter_messages(waiting: deque[Message | Frame]) -> Callable[[], Message | Frame | None]:
    return lambda: waiting.popleft() if waiting else None


def read_on(reader: FrameReader[ToEngine]) -> None:
    while True:
        reader.read()


def request(prompt_tokens: int, name: str = "a") -> GenerateRequest:
    sampling = SamplingParams(max_tokens=3, seed=2**64 - 1, logit_bias={7: -1.5}, stop_token_ids=(1, 2), top_logprobs=2)
    return GenerateRequest(
        id=name,
        prompt=tuple(range(prompt_tokens)),
        sampling=sampling,
        output=(5, 2**32 - 1),
        salt="tenant",
        priority=Priority.BULK,
        deadline_s=1.5,
    )


@pytest.mark.parametrize("prompt_tokens", [1, 16_000, 16_500, 500_000])
def test_a_request_arrives_as_it_was_sent(pair: Pair, prompt_tokens: int) -> None:
    writer, reader, *_ = pair
    sent = request(prompt_tokens)
    assert send_all(writer, Submit.of(sent), Cancel(id="b"))
    received: list[ToEngine] = []
    while (messages := reader.read()) is not None:
        received += messages
    first, second = received
    assert isinstance(first, Submit)
    assert first.request() == sent
    assert second == Cancel(id="b")


def test_a_path_that_is_no_utf8_survives(pair: Pair) -> None:
    writer, reader, *_ = pair
    path = Path(os.fsdecode(b"/models/\xff\xfe"))
    model = ModelFiles(name="m", digest="d", format="gguf", paths={"x.gguf": path})
    start = Start(epoch=1, config=EngineConfig(model=model, threads=2), heartbeat_s=1.0)
    assert send_all(writer, start)
    assert reader.read() == [start]


def test_only_payloads_above_the_limit_use_shared_memory() -> None:
    left, right = socket.socketpair()
    with left, right:
        overhead = len(encode(Cancel(id="x" * 60_000))) - 60_000
        for size, descriptors in ((MAX_INLINE - overhead, 0), (MAX_INLINE - overhead + 1, 1)):
            assert send_all(FrameWriter(left), Cancel(id="x" * size))
            _, received, _, _ = socket.recv_fds(right, 2 * MAX_INLINE, 4)
            assert len(received) == descriptors
            for descriptor in received:
                os.close(descriptor)


def test_a_full_socket_takes_the_rest_later(pair: Pair) -> None:
    writer, reader, *_ = pair
    messages = [Cancel(id=f"{number}" * 1000) for number in range(2000)]
    waiting: deque[Message | Frame] = deque(messages)
    received: list[ToEngine] = []
    blocked = 0
    while not writer.flush(iter_messages(waiting)):
        blocked += 1
        received += reader.read() or []
    while (more := reader.read()) is not None:
        received += more
    assert blocked > 1
    assert received == messages


def test_many_large_messages_leave_no_descriptor(pair: Pair, descriptors: Callable[[], int]) -> None:
    writer, reader, *_ = pair
    before, shared = descriptors(), sorted(Path("/dev/shm").iterdir())
    for number in range(200):
        assert send_all(writer, Submit.of(request(20_000, str(number))))
        assert [message.id for message in reader.read() or [] if isinstance(message, Submit)] == [str(number)]
    assert descriptors() == before
    assert sorted(Path("/dev/shm").iterdir()) == shared


@pytest.mark.parametrize("survivor", ["reader", "writer"])
def test_a_side_that_dies_leaves_no_descriptor(survivor: str, descriptors: Callable[[], int]) -> None:
    before = descriptors()
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    writer, reader = FrameWriter(left), FrameReader(right, decode_to_engine)
    waiting: deque[Message | Frame] = deque(Submit.of(request(20_000, str(number))) for number in range(2000))
    assert not writer.flush(iter_messages(waiting))
    reader.read()
    if survivor == "reader":
        writer.close()
        left.close()
        with pytest.raises(PeerClosed):
            read_on(reader)
        reader.close()
        right.close()
    else:
        reader.close()
        right.close()
        with pytest.raises(PeerClosed):
            writer.flush(iter_messages(waiting))
        writer.close()
        left.close()
    assert descriptors() == before


def test_a_message_too_large_is_refused_and_the_next_goes_through(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, descriptors: Callable[[], int]
) -> None:
    writer, reader, *_ = pair
    monkeypatch.setattr(transport, "MAX_PAYLOAD", 100_000)
    before = descriptors()
    with pytest.raises(PayloadTooLarge, match="100000"):
        send_all(writer, Submit.of(request(30_000)))
    assert send_all(writer, Cancel(id="b"))
    assert reader.read() == [Cancel(id="b")]
    assert descriptors() == before


def with_media(contents: list[bytes]) -> Submit:
    media = [
        Media(kind="image", start=at, count=1, digest=b"d" * 32, content=content, shape=(len(content),))
        for at, content in enumerate(contents)
    ]
    return Submit.of(replace(request(len(media)), media=tuple(media)))


@pytest.mark.parametrize("contents", [[b"ab"], [b"", bytes(LARGE_BYTES)], [bytes([n]) * 400_000 for n in range(4)]])
def test_contents_arrive_as_they_were_sent(pair: Pair, contents: list[bytes], descriptors: Callable[[], int]) -> None:
    writer, reader, *_ = pair
    before = descriptors()
    message = with_media(contents)
    assert bool(apart(message)[1]) == (sum(map(len, contents)) >= LARGE_BYTES)
    assert send_all(writer, message, Cancel(id="b"))
    arrived = [*(reader.read() or ()), *(reader.read() or ())]  # a read ends where a descriptor comes
    assert arrived == [message, Cancel(id="b")]
    assert send_all(writer, frame_of(message))
    assert reader.read() == [message]
    frame_of(message).close()
    assert descriptors() == before


@pytest.mark.parametrize(
    "shared",
    [
        b"",
        struct.pack("!Q", 0),
        struct.pack("!Q", 1 << 40),
        struct.pack("!QQ", 2, 1),
        struct.pack("!QQQ", 2, 1, 3) + b"abc",
        struct.pack("!QQQ", 2, 1, (1 << 64) - 1) + b"abc",
        struct.pack("!QQQ", 2, 3, 3) + b"\xc1bcdef",
    ],
)
def test_malformed_contents_are_a_typed_error(pair: Pair, shared: bytes, descriptors: Callable[[], int]) -> None:
    writer, reader, *_ = pair
    before = descriptors()
    send_all(writer, Frame(HEADER.pack(MAGIC, VERSION, PARTS, len(shared)), seal(shared)))
    with pytest.raises(ProtocolError):
        reader.read()
    assert descriptors() == before


def test_contents_belong_to_a_message_that_has_as_many(pair: Pair) -> None:
    writer, reader, *_ = pair
    for message in (Cancel(id="a"), with_media([b"a"])):
        payload = encode(message)
        shared = struct.pack("!QQQQ", 3, len(payload), 1, 1) + payload + b"xy"
        send_all(writer, Frame(HEADER.pack(MAGIC, VERSION, PARTS, len(shared)), seal(shared)))
        with pytest.raises(ProtocolError, match="belong to no message"):
            reader.read()


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(b"XX", VERSION, INLINE, 1),
        HEADER.pack(MAGIC, VERSION + 1, INLINE, 1),
        HEADER.pack(MAGIC, VERSION, 7, 1),
        HEADER.pack(MAGIC, VERSION, INLINE, MAX_INLINE + 1),
        HEADER.pack(MAGIC, VERSION, MEMFD, MAX_PAYLOAD + 1),
        HEADER.pack(MAGIC, VERSION, MEMFD, 100_000),  # no descriptor came with it
    ],
)
def test_a_malformed_frame_is_a_typed_error(pair: Pair, header: bytes) -> None:
    _, reader, left, _ = pair
    left.send(header + b"\x00")
    with pytest.raises(ProtocolError):
        reader.read()


def test_shared_memory_must_be_sealed_whole_and_a_memfd(descriptors: Callable[[], int]) -> None:
    before = descriptors()
    unsealed = os.memfd_create("t", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(unsealed, b"12345")
    with pytest.raises(ProtocolError, match="not sealed"):
        unseal(unsealed, 5)
    with pytest.raises(ProtocolError, match="5 bytes"):
        unseal(seal(b"12345"), 6)
    read_end, write_end = os.pipe()
    with pytest.raises(ProtocolError, match="no shared memory"):
        unseal(read_end, 5)
    os.close(write_end)
    assert unseal(seal(b"12345"), 5) == b"12345"
    assert descriptors() == before


def test_sealed_memory_cannot_be_changed() -> None:
    descriptor = seal(b"12345")
    with pytest.raises(PermissionError):
        os.write(descriptor, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def test_descriptors_without_frames_are_refused_and_closed(pair: Pair, descriptors: Callable[[], int]) -> None:
    _, reader, left, _ = pair
    before = descriptors()
    read_end, write_end = os.pipe()
    for _ in range(2):
        left.sendmsg([b"E"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [read_end] * 5))])
    assert reader.read() == []
    with pytest.raises(ProtocolError, match="10 descriptors"):
        reader.read()
    reader.close()
    os.close(read_end)
    os.close(write_end)
    assert descriptors() == before


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser_or_the_decoder(data: bytes) -> None:
    for consume in (
        lambda: FrameParser().feed(data, []),
        lambda: decode_to_engine(data),
        lambda: decode_to_service(data),
    ):
        try:
            consume()
        except ProtocolError as error:
            assert isinstance(error, EngineFault)  # noqa: PT017 - other exceptions must pass through


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_frames_do_not_depend_on_how_the_bytes_arrive(payloads: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(HEADER.pack(MAGIC, VERSION, INLINE, len(payload)) + payload for payload in payloads)
    parser = FrameParser()
    received: list[bytes | Parts] = []
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        received += parser.feed(stream[position : position + size], [])
        position, turn = position + size, turn + 1
    assert received == payloads


@pytest.mark.parametrize("prompt", [(-1,), (2**32,), ("a",), (1.5,)])
def test_what_is_no_token_id_is_refused(prompt: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        Submit.of(replace(request(1), prompt=prompt))


def test_packed_tokens_that_are_cut_are_refused() -> None:
    with pytest.raises(ProtocolError):
        unpack(b"12345")


def test_errors_cross_the_border_as_themselves() -> None:
    refused = Refused(epoch=1, id="a", code="rate_limit_exceeded", message="full", param="n", retry_after_s=2.0)
    error = refused.error()
    assert type(error) is QueueFull
    assert (error.message, error.param, error.retry_after_s) == ("full", "n", 2.0)
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.EdgewiseError):
            assert error_from(kind.code, "m").code == kind.code
    unknown = error_from("brand_new", "m")
    assert type(unknown) is EngineFault
    assert "brand_new" in unknown.message
