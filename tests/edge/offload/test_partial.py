"""Beginnings of blobs are kept for the next try, and given up ones do not pile up."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable

import pytest

from edgewise.core.errors import DigestMismatch, EdgewiseError, LinkLost
from edgewise.edge.offload.http import HttpTransport
from edgewise.edge.offload.partial import MOST_BYTES, Partial
from edgewise.wire.messages import Blob, CloudInfo
from tests.edge.offload.raw import raw_server, whole


def read(partial: Partial, name: str, come: int = 0, error: EdgewiseError | None = None) -> int:
    """How much was there; `come` bytes are added, then the link is lost."""
    before = 0
    with contextlib.suppress(EdgewiseError), partial.reading(name) as have:
        before = len(have)
        have += bytes(come)
        raise error or LinkLost("away")
    return before


async def until(condition: Callable[[], bool]) -> None:
    """Bounded by the test's own time limit."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.001)


async def test_a_beginning_is_found_again_until_the_blob_has_come() -> None:
    partial = Partial()
    assert read(partial, "a", 2) == 0
    assert read(partial, "b", 1) == 0
    with partial.reading("a") as have:
        assert len(have) == 2
    assert repr(partial) == "Partial(1 blobs, 1 bytes)"
    assert read(partial, "a") == 0
    assert read(partial, "b") == 1
    with contextlib.suppress(LinkLost), partial.reading("b") as have:
        assert len(have) == 1
        partial.close()
        raise LinkLost("the transport was closed")
    assert partial.nbytes == 0


async def test_what_is_not_the_blob_is_not_kept() -> None:
    partial = Partial()
    read(partial, "a", 2, DigestMismatch("something else"))
    assert repr(partial) == "Partial(0 blobs, 0 bytes)"


async def test_blobs_in_turns_over_a_link_that_breaks_are_all_finished() -> None:
    """Each try brings 40 bytes of 64, and the bound has room for two such beginnings of the four."""
    partial = Partial(most_bytes=100)
    waiting, tries = ["a", "b", "c", "d"], 0
    while waiting and tries < 40:
        name = waiting.pop(0)
        tries += 1
        try:
            with partial.reading(name) as have:
                have += bytes(40)
                if len(have) < 64:
                    raise LinkLost("away")
        except LinkLost:
            waiting.append(name)
    assert not waiting


async def test_a_blob_that_is_being_read_is_not_dropped() -> None:
    partial = Partial(most_bytes=10)
    read(partial, "first", 8)
    with contextlib.suppress(LinkLost), partial.reading("first") as have:
        read(partial, "second", 9)
        assert len(have) == 8
        have += bytes(2)
        raise LinkLost("away")
    assert repr(partial) == "Partial(1 blobs, 10 bytes)"
    assert read(partial, "first") == 10


def test_several_of_the_largest_blobs_have_room() -> None:
    assert 4 * CloudInfo.model_fields["max_blob_bytes"].default <= MOST_BYTES


async def test_small_beginnings_do_not_pile_up_either() -> None:
    partial = Partial(most_blobs=3)
    for number in range(10):
        read(partial, str(number))
        read(partial, str(number), 1)
    assert repr(partial) == "Partial(3 blobs, 3 bytes)"


async def test_what_nobody_goes_on_with_is_dropped_after_a_while() -> None:
    moment = 0.0
    partial = Partial(keep_s=0.01, now=lambda: moment)
    read(partial, "old", 5)
    moment = 0.005
    read(partial, "new", 3)
    moment = 0.012
    await until(lambda: partial.nbytes == 3)
    moment = 0.02
    await until(lambda: partial.nbytes == 0)
    assert repr(partial) == "Partial(0 blobs, 0 bytes)"


async def test_pictures_whose_link_is_lost_for_good_leave_a_bounded_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n"
    async with raw_server(lambda method, path, body: [head, bytes(1000), 0.05, None]) as server:
        transport = HttpTransport(server.url)
        monkeypatch.setattr(transport, "_partial", Partial(most_bytes=2500))
        try:
            for number in range(6):
                name = hashlib.sha256(str(number).encode()).hexdigest()
                with pytest.raises(LinkLost):
                    await transport.get_blob(Blob(sha256=name, bytes=2000, media="image/png"))
            assert repr(transport._partial) == "Partial(2 blobs, 2000 bytes)"
        finally:
            await transport.close()
        assert transport._partial.nbytes == 0


async def test_large_blobs_in_turns_go_on_where_their_links_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blobs of which one alone reaches the bound, over a link that breaks after five eighths of one."""
    contents = {hashlib.sha256(body).hexdigest(): body for body in (bytes([number]) * 64_000 for number in range(3))}

    def reply(method: str, path: str, body: bytes) -> list[bytes | float | None]:
        content = contents[path.rsplit("/", 1)[1]]
        start = int(server.headers[-1].get("range", "bytes=0-")[6:-1])
        part = content[start:]
        answer = whole(part, "206 Partial Content" if start else "200 OK")
        return [answer] if len(part) <= 40_000 else [answer[: len(answer) - len(part) + 40_000], 0.05, None]

    async with raw_server(reply) as server:
        transport = HttpTransport(server.url)
        monkeypatch.setattr(transport, "_partial", Partial(most_bytes=64_000))
        waiting, tries = list(contents), 0
        try:
            while waiting and tries < 12:
                name = waiting.pop(0)
                tries += 1
                try:
                    got = await transport.get_blob(Blob(sha256=name, bytes=64_000, media="image/png"))
                    assert got == contents[name]
                except LinkLost:
                    waiting.append(name)
        finally:
            await transport.close()
    assert not waiting
