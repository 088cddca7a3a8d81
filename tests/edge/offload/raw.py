"""A test double of a server: answers each request on its socket with bytes that a test has written, whatever they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Reply = Callable[[str, str, bytes], list[bytes | float | None]]
"""Method, path and body to what is sent: bytes; a pause in seconds; None resets the connection."""


@dataclass
class RawServer:
    """Attributes:
    reply: What it says.
    asked: First lines of the requests, with their bodies.
    """

    reply: Reply
    url: str = ""
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append((first, body))
                self.headers.append(headers)
                method, path, _ = first.split(" ")
                for part in self.reply(method, path, body):
                    if part is None:
                        writer.transport.abort()
                        return
                    if isinstance(part, float):
                        await asyncio.sleep(part)
                    else:
                        writer.write(part)
                        await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(reply: Reply) -> AsyncIterator[RawServer]:
    server = RawServer(reply)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()


def whole(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """An answer with its length."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


def streamed(*parts: bytes | float | None) -> list[bytes | float | None]:
    """A stream in pieces, whose end is the end of the chunked coding."""
    head: list[bytes | float | None] = [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
    ]
    pieces = [f"{len(part):x}\r\n".encode() + part + b"\r\n" if isinstance(part, bytes) else part for part in parts]
    return head + pieces
