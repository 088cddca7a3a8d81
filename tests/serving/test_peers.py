"""Parts of the hand-over of KV pages: what crosses the wire, who may have what, and when it is worth it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.addresses import is_lan
from edgewise.core.errors import BadMessage
from edgewise.core.settings_links import PeersSettings
from edgewise.serving.peers.rates import STALE_S, LinkRate, break_even
from edgewise.serving.peers.shown import ShownPages
from edgewise.wire.pages import fingerprint, pack_pages, unpack_pages

NAMES = [bytes([number]) * 32 for number in range(4)]
CONTENTS = [bytes([10 * number]) * 48 for number in range(4)]
PACKED = pack_pages(NAMES, CONTENTS)


def test_pages_arrive_as_they_were_sent() -> None:
    assert unpack_pages(PACKED, NAMES, 48) == CONTENTS
    assert unpack_pages(pack_pages(NAMES[:2], CONTENTS[:2]), NAMES, 48) == CONTENTS[:2]
    assert unpack_pages(pack_pages([], []), NAMES, 48) == []


@given(st.integers(0, 8 * len(PACKED) - 1))
def test_no_flipped_bit_passes(bit: int) -> None:
    wrong = bytearray(PACKED)
    wrong[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadMessage):
        unpack_pages(bytes(wrong), NAMES, 48)


@given(st.binary(max_size=200))
def test_what_is_no_answer_is_refused(payload: bytes) -> None:
    with pytest.raises(BadMessage):
        unpack_pages(payload, NAMES, 48)


@pytest.mark.parametrize("length", [0, 11, 40, len(PACKED) - 1])
def test_a_cut_answer_is_refused(length: int) -> None:
    with pytest.raises(BadMessage):
        unpack_pages(PACKED[:length], NAMES, 48)


def test_pages_of_other_names_or_another_size_are_refused() -> None:
    for names, size in ((NAMES[::-1], 48), (NAMES[:3], 48), (NAMES, 32)):
        with pytest.raises(BadMessage):
            unpack_pages(PACKED, names, size)


def test_a_tenant_has_its_own_pages_alone() -> None:
    shown = ShownPages(most=6)
    shown.add("model", "key:alice", NAMES)
    assert shown.known("model", "key:alice", NAMES) == 4
    assert shown.known("model", "key:bob", NAMES) == shown.known("another", "key:alice", NAMES) == 0
    assert shown.known("model", "key:alice", [NAMES[0], b"x" * 32, NAMES[1]]) == 1
    shown.add("model", "key:bob", NAMES)
    assert len(shown) == 6
    assert shown.known("model", "key:alice", NAMES) == 2  # the first pages stay longest
    assert fingerprint("pages", NAMES[0]) != fingerprint("pages", NAMES[1])


def test_a_link_is_measured_and_measured_again() -> None:
    now = 1000.0
    link = LinkRate(lambda: now)
    assert link.bits_per_s is None
    link.add(1_000_000, 1.0)
    assert link.bits_per_s == 8e6
    link.add(1_000_000, 0.5)
    assert 8e6 < (link.bits_per_s or 0.0) < 16e6
    now += STALE_S + 1
    assert link.bits_per_s is None
    link.add(500_000, 1.0)
    assert link.bits_per_s == 4e6


def test_the_break_even_is_that_of_the_design() -> None:
    # 1,024 tokens of 36 kB, computed at 1,000 tokens/s, take as long as over a link of 288 Mbit/s.
    assert break_even(36_000, 1000) == 288e6


@pytest.mark.parametrize(
    ("host", "private"),
    [
        *(
            (host, True)
            for host in ("10.1.2.3", "172.31.0.1", "192.168.1.9", "127.0.0.1", "169.254.3.3", "::1", "fd00::1")
        ),
        *((host, True) for host in ("fe80::1%eth0", "::ffff:192.168.1.9")),
        *(
            (host, False)
            for host in ("8.8.8.8", "172.32.0.1", "100.64.0.1", "2001:db8::1", "::ffff:8.8.8.8", "nas.local", "")
        ),
    ],
)
def test_peers_have_private_addresses(host: str, private: bool) -> None:
    assert is_lan(host) is private
    url = f"http://[{host}]:8400" if ":" in host else f"http://{host}:8400"
    if private:
        assert PeersSettings(urls=(url,)).urls == (url,)
        return
    with pytest.raises(ValueError, match="private address"):
        PeersSettings(urls=(url,))


@pytest.mark.parametrize(
    "url", ["ftp://10.0.0.1", "http://u:p@10.0.0.1", "http://10.0.0.1/v1", "http://10.0.0.1:99999"]
)
def test_a_peer_is_a_base_address(url: str) -> None:
    with pytest.raises(ValueError, match="private address"):
        PeersSettings(urls=(url,))
