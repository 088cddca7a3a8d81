"""Frames over a Unix stream socket pair.

A frame is a header of 8 bytes (magic "EW", protocol version, kind, payload length in network order) and, for the kind INLINE,
the payload. A payload above `MAX_INLINE` travels as a sealed memfd beside the header (kind MEMFD); a message with large contents
as one that holds it and them in a row, behind their lengths (kind PARTS). Descriptors arrive in the order of the headers they
were sent with, never later than the header's first byte (unix(7), SCM_RIGHTS), so a queue pairs them.

Both ends are non-blocking: `FrameWriter.flush` sends what the socket takes, `FrameReader.read` returns what has arrived.
"""

from __future__ import annotations

import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from edgewise.core.errors import EngineUnavailable, PayloadTooLarge
from edgewise.engine.messages import Message, ProtocolError, apart, encode, together
from edgewise.engine.shm import seal, unseal

MAGIC = b"EW"
VERSION = 1
INLINE = 0
MEMFD = 1
PARTS = 2
MAX_INLINE = 64 * 1024
MAX_PAYLOAD = 64 * 1024 * 1024
HEADER = struct.Struct("!2sBBI")
_LENGTH = struct.Struct("!Q")
_MAX_PARTS = 1 << 16

_READ_BYTES = 128 * 1024
_MAX_DESCRIPTORS = 8
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array("i").itemsize)

MessageT = TypeVar("MessageT")


class PeerClosed(EngineUnavailable):
    """The other end of the engine socket is gone."""


class Parts(NamedTuple):
    """A payload with contents beside it."""

    payload: bytes
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A message ready to be sent: what goes through the socket, and the descriptor of the rest, closed by `close` or sending."""

    head: bytes
    descriptor: int | None = None

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


def frame_of(message: Message) -> Frame:
    """Encode a message; of a large one its contents are copied once, into shared memory, so a thread may do it.

    Raises:
        PayloadTooLarge: It is larger than `MAX_PAYLOAD`.
        OutOfMemory: There is no shared memory for it.
    """
    bare, contents = apart(message)
    payload = encode(bare)
    if contents:
        parts = (payload, *contents)
        lengths = b"".join(_LENGTH.pack(number) for number in (len(parts), *map(len, parts)))
        return _shared(PARTS, lengths, *parts)
    if len(payload) > MAX_INLINE:
        return _shared(MEMFD, payload)
    return Frame(HEADER.pack(MAGIC, VERSION, INLINE, len(payload)) + payload)


def _shared(kind: int, *parts: bytes) -> Frame:
    length = sum(map(len, parts))
    if length > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"A request of {length} bytes exceeds the engine's limit of {MAX_PAYLOAD} bytes: send fewer or smaller "
            "pictures, films or sounds."
        )
    return Frame(HEADER.pack(MAGIC, VERSION, kind, length), seal(*parts))


def _apart(shared: bytes) -> Parts:
    """What `frame_of` has put in a row.

    Raises:
        ProtocolError: The lengths are not those of what follows.
    """
    size = _LENGTH.size
    try:
        (count,) = _LENGTH.unpack_from(shared)
        if not 1 <= count <= _MAX_PARTS:
            raise ProtocolError(f"A frame on the engine socket has {count} parts.")
        lengths = [_LENGTH.unpack_from(shared, size * (1 + index))[0] for index in range(count)]
    except struct.error as error:
        raise ProtocolError(f"A frame on the engine socket is cut in its lengths: {error}.") from error
    at = size * (1 + count)
    if at + sum(lengths) != len(shared):
        raise ProtocolError("A frame on the engine socket has parts of other lengths than it says.")
    view, parts = memoryview(shared), []
    for length in lengths:
        parts.append(bytes(view[at : at + length]))
        at += length
    return Parts(parts[0], tuple(parts[1:]))


class FrameParser:
    """Bytes and descriptors in, payloads out; no I/O but reading the shared memory of a descriptor."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def __repr__(self) -> str:
        return f"FrameParser({len(self._buffer)} bytes, {len(self._descriptors)} descriptors waiting)"

    def feed(self, data: bytes, descriptors: list[int]) -> list[bytes | Parts]:
        """Return the payloads completed by these bytes.

        Raises:
            ProtocolError: Wrong magic, version, kind or length, or descriptors without a frame that names them.
        """
        if not (self._buffer or descriptors) and _is_one(data):
            return [data[HEADER.size :]]
        self._buffer += data
        self._descriptors.extend(descriptors)
        payloads: list[bytes | Parts] = []
        while (payload := self._next()) is not None:
            payloads.append(payload)
        if len(self._descriptors) > _MAX_DESCRIPTORS:
            raise ProtocolError(f"{len(self._descriptors)} descriptors on the engine socket belong to no frame.")
        return payloads

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _next(self) -> bytes | Parts | None:
        if len(self._buffer) < HEADER.size:
            return None
        magic, version, kind, length = HEADER.unpack_from(self._buffer)
        _check_header(magic, version, kind, length)
        if kind == MEMFD:
            return self._take_shared(length)
        if kind == PARTS:
            return _apart(self._take_shared(length))
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(memoryview(self._buffer)[HEADER.size : end])
        del self._buffer[:end]
        return payload

    def _take_shared(self, length: int) -> bytes:
        if not self._descriptors:
            raise ProtocolError("A frame on the engine socket lacks its shared memory.")
        del self._buffer[: HEADER.size]
        return unseal(self._descriptors.popleft(), length)


def _is_one(data: bytes) -> bool:
    """Whether these bytes are one whole frame with its payload inline, as nearly all are."""
    if len(data) < HEADER.size:
        return False
    magic, version, kind, length = HEADER.unpack_from(data)
    return (magic, version, kind) == (MAGIC, VERSION, INLINE) and length == len(data) - HEADER.size <= MAX_INLINE


def _check_header(magic: bytes, version: int, kind: int, length: int) -> None:
    if magic != MAGIC:
        raise ProtocolError(f"A frame on the engine socket starts with {magic!r} instead of {MAGIC!r}.")
    if version != VERSION:
        raise ProtocolError(
            f"The engine process speaks protocol version {version}, this process {VERSION}: restart the service."
        )
    limit = {INLINE: MAX_INLINE, MEMFD: MAX_PAYLOAD, PARTS: MAX_PAYLOAD}.get(kind)
    if limit is None:
        raise ProtocolError(f"A frame on the engine socket has the unknown kind {kind}.")
    if length > limit:
        raise ProtocolError(f"A frame on the engine socket announces {length} bytes; the limit is {limit}.")


class FrameReader(Generic[MessageT]):
    """Messages from a non-blocking socket."""

    def __init__(self, sock: socket.socket, decode: Callable[[bytes], MessageT]) -> None:
        self._sock = sock
        self._decode = decode
        self._parser = FrameParser()

    def read(self) -> list[MessageT] | None:
        """Receive once: the messages completed by it, or None when nothing is there to be received.

        Raises:
            PeerClosed: End of file.
            ProtocolError: What arrived is no frame.
        """
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(_READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise PeerClosed(f"The engine socket failed: {error.strerror}.") from error
        payloads = self._parser.feed(data, _descriptors(ancillary))
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError("A frame on the engine socket brought more descriptors than allowed.")
        if not data:
            raise PeerClosed("The engine socket was closed by the other side.")
        return [self._message(payload) for payload in payloads]

    def _message(self, payload: bytes | Parts) -> MessageT:
        if isinstance(payload, Parts):
            return together(self._decode(payload.payload), payload.contents)
        return self._decode(payload)

    def close(self) -> None:
        self._parser.close()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    if not ancillary:
        return []
    descriptors = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)


class FrameWriter:
    """Messages to a non-blocking socket. A message is encoded only when its turn has come."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pending = memoryview(b"")
        self._descriptor: int | None = None

    @property
    def idle(self) -> bool:
        """True if no frame is sent in part."""
        return not self._pending

    def flush(self, next_message: Callable[[], Message | Frame | None]) -> bool:
        """Send messages until there are none (True) or the socket takes no more (False).

        Raises:
            PeerClosed: The other end is gone.
            PayloadTooLarge: A message is larger than `MAX_PAYLOAD`; nothing of it was sent.
            OutOfMemory: There is no shared memory for a large message; nothing of it was sent.
        """
        while True:
            if self.idle:
                message = next_message()
                if message is None:
                    return True
                frame = message if isinstance(message, Frame) else frame_of(message)
                self._pending, self._descriptor = memoryview(frame.head), frame.descriptor
            if not self._send():
                return False

    def close(self) -> None:
        self._pending = memoryview(b"")
        self._close_descriptor()

    def _send(self) -> bool:
        """Push the pending frame; False if the socket is full before its end."""
        while self._pending:
            try:
                if self._descriptor is None:
                    sent = self._sock.send(self._pending)
                else:
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [self._descriptor]))
                    sent = self._sock.sendmsg([self._pending], [rights])
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                raise PeerClosed(f"The engine socket failed: {error.strerror}.") from error
            self._close_descriptor()  # the descriptor went with the first byte
            self._pending = self._pending[sent:]
        return True

    def _close_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
