"""Bodies of answers within a bound: whatever a server sends, the memory of whoever asks stays flat."""

from __future__ import annotations

import httpx

from edgewise.core.errors import EdgewiseError, LinkLost


async def read_bounded(response: httpx.Response, most: int, *, fault: type[EdgewiseError] = LinkLost) -> bytes:
    """The decoded body of an answer that was begun as a stream.

    Args:
        most: Bytes that are taken, counted after decompression.
        fault: What is raised for more.

    Raises:
        httpx.HTTPError: The connection broke.
    """
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > most:
            raise fault(f"{response.url.host} answers with more than {most} bytes, the most that is taken.")
    return bytes(body)
