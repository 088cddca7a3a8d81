"""Bodies of answers within a bound: whatever a server sends, the memory of whoever asks stays flat.

Bodies are taken as they cross the wire. A client library that decompresses does so for a whole piece at once, and for codings
inside codings, so that a kilobyte becomes a gigabyte before anybody can count: requests ask for no coding (`PLAIN`), and an
answer in one is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Final

import httpx

from edgewise.core.errors import EdgewiseError, LinkLost

PLAIN: Final = MappingProxyType({"accept-encoding": "identity"})
"""Headers of a request whose answer is read here."""


async def read_bounded(response: httpx.Response, most: int, *, fault: type[EdgewiseError] = LinkLost) -> bytes:
    """The body of an answer that was begun as a stream; not read at all where its head announces too much.

    Args:
        most: Bytes that are taken.
        fault: What is raised for more, and for a body in a coding.

    Raises:
        httpx.HTTPError: The connection broke.
    """
    announced = response.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > most:
        raise _too_long(response, most, fault)
    body = bytearray()
    async for piece in plain_pieces(response, fault=fault):
        body += piece
        if len(body) > most:
            raise _too_long(response, most, fault)
    return bytes(body)


async def plain_pieces(response: httpx.Response, *, fault: type[EdgewiseError] = LinkLost) -> AsyncIterator[bytes]:
    """The body as it comes, each piece at most what one read of the socket gives.

    Raises:
        httpx.HTTPError: The connection broke.
        EdgewiseError: It is in a coding: `fault`.
    """
    coding = response.headers.get("content-encoding", "")
    if any(name.strip().lower() not in ("", "identity") for name in coding.split(",")):
        raise fault(
            f"{response.url.host} answers with `content-encoding: {coding[:50]}`, though `identity` was asked for: let that "
            "server, or the proxy before it, send answers uncompressed."
        )
    async for piece in response.aiter_raw():
        yield piece


def _too_long(response: httpx.Response, most: int, fault: type[EdgewiseError]) -> EdgewiseError:
    return fault(
        f"{response.url.host} answers with more than {most} bytes, the most that is taken: check that the address is that of "
        "the server that is meant, and no proxy or login page answers for it."
    )
