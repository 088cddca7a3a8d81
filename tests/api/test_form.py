"""Forms with files: what their fields mean, and what is said of those that cannot be taken."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from starlette.formparsers import MultiPartParser
from starlette.requests import Request
from starlette.types import Message

from edgewise.api.errors import BodyTimeoutError
from edgewise.api.form import Form, FormShape, read_form
from edgewise.api.multipart import paced
from edgewise.core.errors import PayloadTooLarge, StorageError

SHAPE = FormShape(
    main="file", what="the recording", files=frozenset({"file"}), known=frozenset({"temperature"}), texts=frozenset()
)


def asked(body: bytes, more: Callable[[], bool] = lambda: False) -> Request:
    """A request whose body is these bytes, once or as often as there is more."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": more()}

    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


async def read(temperature: str = "0.5", **limits: Any) -> Form:
    parts = (
        'name="file"; filename="a.wav"\r\n\r\nsound',
        f'name="temperature"\r\n\r\n{temperature}',
    )
    body = "".join(f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in parts) + "--b--\r\n"
    return await read_form(asked(body.encode()), SHAPE, silence_s=60.0, **{"max_bytes": 1000, **limits})


async def test_a_value_that_is_nested_without_end_is_a_text() -> None:
    assert (await read()).fields == {"temperature": 0.5}
    deep = "[" * 100_000
    assert (await read(deep, max_bytes=200_000)).fields == {"temperature": deep}


async def test_a_full_disk_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(self: MultiPartParser) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MultiPartParser, "parse", full)
    with pytest.raises(StorageError, match="the disk is full"):
        await read()


async def test_a_file_that_is_too_large_is_refused_by_the_setting() -> None:
    with pytest.raises(PayloadTooLarge, match=r"'file' is larger .*audio\.max_bytes: 4.*smaller"):
        await read(max_bytes=4, setting="audio.max_bytes")


async def test_a_sender_that_trickles_is_given_up() -> None:
    clock = count(0.0, 50.0)  # a byte every 50 s: never a silence of 60 s
    parts = paced(asked(b"x", lambda: True), 1000, 60.0, clock=lambda: next(clock))
    with pytest.raises(BodyTimeoutError, match="too slowly"):
        [part async for part in parts]
    fast = count(0.0, 50.0)
    parts = paced(asked(b"x" * 60_000, lambda: True), 10**6, 60.0, clock=lambda: next(fast))
    assert [len(await anext(parts)) for _ in range(10)] == [60_000] * 10
    await parts.aclose()
