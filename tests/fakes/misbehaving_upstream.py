"""A server with OpenAI's completions API that misbehaves as it is told to, byte by byte. It holds no model."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Act = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Answers one request; the connection is closed afterwards."""

PIECES = ("one ", "two ", "three")


@dataclass
class MisbehavingUpstream:
    """What the coming completions are answered with, and what came.

    Attributes:
        acts: For the coming requests to /completions, then `default` for streams and `whole` for others.
        listing: Answers /models.
        bodies: Of the requests to /completions.
        gone: Set when a client has left a connection on which an act waits.
    """

    url: str = ""
    acts: list[Act] = field(default_factory=list)
    default: Act = field(default_factory=lambda: says())
    whole: Act = field(default_factory=lambda: counts(1))
    listing: Act = field(default_factory=lambda: answers(200, {"data": [{"id": "m", "owned_by": "vllm"}]}))
    bodies: list[dict[str, Any]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def waits(self, *before: bytes, comments: bool = False) -> Act:
        """Send some pieces of a stream, then nothing more (but comments) until the client leaves."""

        async def act(writer: asyncio.StreamWriter) -> None:
            writer.write(stream_head() + b"".join(before))
            try:
                while not writer.is_closing():
                    await asyncio.sleep(0.02)
                    if comments:
                        writer.write(b": keep-alive\n\n")
                        await writer.drain()
            except ConnectionError:
                pass
            self.gone.set()

        return act

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next((int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if head.startswith("get"):
            act = self.listing
        else:
            self.bodies.append(json.loads(body))
            otherwise = self.default if self.bodies[-1].get("stream") else self.whole
            act = self.acts.pop(0) if self.acts else otherwise
        leaving = asyncio.create_task(self._close_when_left(reader, writer))
        try:
            await act(writer)
            await writer.drain()
        except ConnectionError:
            return
        finally:
            leaving.cancel()
            writer.close()

    async def _close_when_left(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()


@asynccontextmanager
async def misbehaving_upstream() -> AsyncIterator[MisbehavingUpstream]:
    """A running one, on loopback."""
    upstream = MisbehavingUpstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield upstream
    finally:
        server.close()


def stream_head() -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def piece(text: str, finish: str | None = None, **more: Any) -> bytes:
    """An event with text."""
    return event({"model": "m-as-served", "choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]})


def usage(prompt: int, completion: int, cached: int = 0) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": counts | {"prompt_tokens_details": {"cached_tokens": cached}}})


def sends(*raw: bytes) -> Act:
    """These bytes, then the end of the connection."""

    async def act(writer: asyncio.StreamWriter) -> None:
        for one in raw:
            writer.write(one)
            await writer.drain()

    return act


def says(*pieces: str, finish: str = "stop", prompt_tokens: int = 7) -> Act:
    """A proper answer."""
    texts = pieces or PIECES
    body = [piece(text) for text in texts[:-1]] + [piece(texts[-1], finish), usage(prompt_tokens, len(texts), 2)]
    return sends(stream_head(), *body, b"data: [DONE]\n\n")


def answers(status: int, body: Any, **headers: str) -> Act:
    """A whole answer as JSON."""
    content = json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\nconnection: close\r\n{lines}\r\n"
    return sends(head.encode(), content)


def counts(prompt_tokens: int) -> Act:
    """A whole answer of one token, with a count."""
    return answers(200, {"choices": [{"text": "x"}], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 1}})


def resets(*raw: bytes) -> Act:
    """These bytes, then a TCP reset."""

    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(raw))
        await writer.drain()
        await asyncio.sleep(0.05)  # let them arrive: a reset overtakes what was not read
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return act


def half_closes(*raw: bytes) -> Act:
    """These bytes, then the end of one direction only; the connection stays until the client leaves."""

    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(raw))
        writer.write_eof()
        await writer.wait_closed()

    return act
