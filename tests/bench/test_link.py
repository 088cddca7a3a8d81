"""The link between two processes, on real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from edgewise.bench.link import Link, LinkShape, RecordFull

PATIENCE_S = 20.0


class Echo:
    """A server that sends back what it gets, each connection in a thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.broken = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                while piece := peer.recv(65536):
                    peer.sendall(piece)
            except OSError:
                self.broken.set()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as server:
        yield server


def connect(link: Link) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=PATIENCE_S)


def send_all(peer: socket.socket, content: bytes) -> None:
    peer.sendall(content)
    peer.shutdown(socket.SHUT_WR)


def receive(peer: socket.socket, count: int) -> bytes:
    """Up to `count` bytes: fewer where the connection ended or broke before."""
    got = b""
    while len(got) < count:
        try:
            piece = peer.recv(count - len(got))
        except ConnectionResetError:
            break
        if not piece:
            break
        got += piece
    return got


def broken(peer: socket.socket) -> bool:
    """Whether the connection has been reset, or is within our patience."""
    try:
        while peer.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return False


def breaks_what_connects(link: Link) -> bool:
    """Whether a new connection is reset, be it before `connect` has returned."""
    try:
        with connect(link) as peer:
            return broken(peer)
    except ConnectionResetError:
        return True


def test_bytes_pass_unchanged_both_ways_and_are_counted_and_kept(echo: Echo) -> None:
    sent = bytes(range(256)) * 4096
    with Link("127.0.0.1", echo.port) as link, connect(link) as peer:
        threading.Thread(target=send_all, args=(peer, sent), daemon=True).start()
        assert receive(peer, len(sent) + 1) == sent
        assert (link.carried("up"), link.carried("down"), link.connections) == (len(sent), len(sent), 1)
        assert link.passed("up") == [sent]


def test_a_marker_that_crosses_in_two_pieces_is_seen(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port) as link, connect(link) as peer:
        for piece in (b"xx-mar", b"ker-xx"):
            peer.sendall(piece)
            assert receive(peer, len(piece)) == piece
        assert link.saw(b"-marker-", "up")
        assert link.saw(b"-marker-")
        assert not link.saw(b"-Marker-")


def test_what_was_not_kept_is_not_said_to_be_absent(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port, keep_bytes=100) as link, connect(link) as peer:
        peer.sendall(b"a" * 101)
        receive(peer, 101)
        with pytest.raises(RecordFull):
            link.saw(b"b")


def test_latency_delays_a_round_trip_and_a_connection(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port, LinkShape(rtt_s=0.2)) as link, connect(link) as peer:
        began = time.monotonic()
        peer.sendall(b"a")
        receive(peer, 1)
        first = time.monotonic() - began
        began = time.monotonic()
        peer.sendall(b"b")
        receive(peer, 1)
        second = time.monotonic() - began
    assert first >= 0.35  # connection and round trip, less what passed before the clock was read
    assert second >= 0.2


def test_jitter_keeps_the_order(echo: Echo) -> None:
    sent = bytes(index % 251 for index in range(2000))
    with Link("127.0.0.1", echo.port, LinkShape(jitter_s=0.005)) as link, connect(link) as peer:
        for at in range(0, len(sent), 50):
            peer.sendall(sent[at : at + 50])
        assert receive(peer, len(sent)) == sent


def test_rate_is_shared_by_all_connections(echo: Echo) -> None:
    size = 25_000
    with Link("127.0.0.1", echo.port, LinkShape(bits_per_s=1e6)) as link, connect(link) as one, connect(link) as two:
        began = time.monotonic()
        for peer in (one, two):
            peer.sendall(b"a" * size)
        for peer in (one, two):
            assert len(receive(peer, size)) == size
        assert time.monotonic() - began >= 2 * size * 8 / 1e6


def test_reset_breaks_both_ends_and_takes_new_connections(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port) as link, connect(link) as peer:
        peer.sendall(b"a")
        assert receive(peer, 1) == b"a"
        link.reset()
        assert broken(peer)
        assert echo.broken.wait(PATIENCE_S)
        with connect(link) as again:
            again.sendall(b"b")
            assert receive(again, 1) == b"b"


def test_cut_breaks_new_connections_until_restored(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port) as link:
        link.cut()
        assert breaks_what_connects(link)
        link.restore()
        with connect(link) as peer:
            peer.sendall(b"b")
            assert receive(peer, 1) == b"b"


def test_held_bytes_arrive_after_the_link_is_restored(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port) as link, connect(link) as peer:
        peer.sendall(b"a")
        receive(peer, 1)
        link.hold()
        peer.sendall(b"b")
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        link.restore()
        peer.settimeout(PATIENCE_S)
        assert receive(peer, 1) == b"b"


@pytest.mark.parametrize("count", [1, 777, 4000])
def test_a_reset_after_so_many_bytes_lets_exactly_these_pass(echo: Echo, count: int) -> None:
    with Link("127.0.0.1", echo.port) as link, connect(link) as peer:
        fired = link.act_after(count, "reset")
        peer.sendall(b"a" * 5000)
        assert len(receive(peer, 5000)) == count
        assert fired.wait(PATIENCE_S)
        assert link.carried("down") == count


def test_nothing_of_a_piece_in_whose_midst_the_link_is_held_is_lost(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port) as link, connect(link) as peer:
        fired = link.act_after(700, "hold")
        peer.sendall(bytes(range(250)) * 8)
        assert fired.wait(PATIENCE_S)
        assert receive(peer, 700) == (bytes(range(250)) * 8)[:700]
        assert link.carried("down") == 700
        link.restore()
        assert receive(peer, 1300) == (bytes(range(250)) * 8)[700:]


def test_a_cut_after_a_text_counts_it_across_pieces_and_connections(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port) as link:
        fired = link.act_after(3, "cut", direction="up", text=b"data:")
        with connect(link) as one:
            one.sendall(b"data: 1 da")
            assert receive(one, 10) == b"data: 1 da"
            one.sendall(b"ta: 2")
            assert receive(one, 5) == b"ta: 2"
        assert not fired.is_set()
        with connect(link) as two:
            two.sendall(b"- data: 3 data: 4")
            assert fired.wait(PATIENCE_S)
            assert broken(two)
        assert link.passed("up")[1] == b"- data:"
        assert breaks_what_connects(link)


def test_two_triggers_in_one_piece_the_nearer_one_fires_and_the_other_counts_what_passed(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port) as link:
        far, near = link.act_after(30, "reset", direction="up"), link.act_after(10, "reset", direction="up")
        with connect(link) as one:
            one.sendall(b"a" * 50)
            assert broken(one)
        assert near.is_set()
        assert not far.is_set()
        with connect(link) as two:
            two.sendall(b"a" * 50)
            assert broken(two)
        assert far.is_set()
        assert link.carried("up") == 30


def test_random_resets_break_connections(echo: Echo) -> None:
    with Link("127.0.0.1", echo.port, LinkShape(bytes_between_resets=1000), seed=3) as link, connect(link) as peer:
        try:
            for _ in range(1000):
                peer.sendall(b"a" * 100)
                if len(receive(peer, 100)) < 100:
                    return
        except OSError:
            return
    pytest.fail("100,000 bytes crossed unbroken")


def test_an_unreachable_target_breaks_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with Link("127.0.0.1", port) as link:
        assert breaks_what_connects(link)
