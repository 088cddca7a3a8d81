"""Beginnings of blobs are kept for the next try, and given up ones do not pile up."""

from __future__ import annotations

import hashlib

import pytest

from edgewise.core.errors import LinkLost
from edgewise.edge.offload.http import HttpTransport
from edgewise.edge.offload.partial import Partial
from edgewise.wire.messages import Blob
from tests.edge.offload.raw import raw_server


def test_a_beginning_is_found_again_until_it_is_forgotten() -> None:
    partial = Partial()
    partial.begun("a").extend(b"12")
    partial.begun("b").extend(b"3")
    assert partial.begun("a") == b"12"
    partial.forget("a")
    assert partial.begun("a") == b""
    assert partial.begun("b") == b"3"


def test_those_asked_for_longest_ago_make_room_but_stay_whole_for_their_readers() -> None:
    partial = Partial(most_bytes=10)
    first = partial.begun("first")
    first.extend(bytes(8))
    partial.begun("second").extend(bytes(6))
    assert partial.begun("first") is first  # asked for again: the second is older now
    third = partial.begun("third")
    assert repr(partial) == "Partial(2 blobs, 8 bytes)"
    third.extend(bytes(5))
    partial.begun("fourth")
    assert repr(partial) == "Partial(2 blobs, 5 bytes)"
    first.extend(bytes(8))
    assert len(first) == 16


def test_blobs_of_which_nothing_came_do_not_pile_up_either() -> None:
    partial = Partial(most_blobs=3)
    for number in range(10):
        partial.begun(str(number))
    assert repr(partial) == "Partial(3 blobs, 0 bytes)"


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
        finally:
            await transport.close()
        assert repr(transport._partial) == "Partial(3 blobs, 3000 bytes)"
