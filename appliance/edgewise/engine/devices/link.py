"""Messages between two members over a Unix stream socket pair: eight bytes of length, then the payload. Both ends block."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Generic, TypeVar

from edgewise.engine.messages import Message, encode

_LENGTH = struct.Struct("=Q")
_MOST = 1 << 30
"""Bytes of a message; what moves pages sends them in smaller runs (`mover`)."""

T = TypeVar("T")


class Gone(OSError):
    """The other end has been closed, or its process has ended."""


class Link(Generic[T]):
    """One end. `send` and `receive` are for one thread each."""

    def __init__(self, sock: socket.socket, decode: Callable[[bytes], T]) -> None:
        self._sock = sock
        self._decode = decode

    def __repr__(self) -> str:
        return f"Link({self._sock.fileno()})"

    def send(self, *messages: Message) -> None:
        """Raises `Gone`."""
        payloads = [encode(message) for message in messages]
        try:
            self._sock.sendall(b"".join(part for one in payloads for part in (_LENGTH.pack(len(one)), one)))
        except OSError as error:
            raise Gone("the other end takes no more messages") from error

    def receive(self) -> T:
        """Wait for the next message. Raises `Gone`."""
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if size > _MOST:
            raise Gone(f"a message of {size} bytes was announced, more than {_MOST}")
        return self._decode(self._exactly(size))

    def close(self) -> None:
        self._sock.close()

    def _exactly(self, size: int) -> bytes:
        buffer = bytearray(size)
        view, done = memoryview(buffer), 0
        while done < size:
            try:
                count = self._sock.recv_into(view[done:])
            except OSError as error:
                raise Gone("the other end has broken off") from error
            if count == 0:
                raise Gone("the other end has been closed")
            done += count
        return bytes(buffer)
