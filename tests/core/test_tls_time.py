"""Handshakes of real sockets with certificates whose dates lie years away from this machine's clock."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from edgewise.cloud.fleet.enrolment.authority import CERTIFICATE_FILE, Authority
from edgewise.core.clock import EARLIEST_PLAUSIBLE, FakeClock
from edgewise.core.tls_time import TimeFloor, client_context

Connect = Callable[[int, TimeFloor, Path], None]
YEAR = 365 * 86_400.0
FIRST = EARLIEST_PLAUSIBLE.timestamp()


@contextmanager
def server(folder: Path, issued_at: float, days: float = 30.0) -> Iterator[int]:
    """A TLS server whose certificate was made at `issued_at`; answers each connection with one HTTP response."""
    certificate, key = Authority(folder, clock=FakeClock(issued_at)).server_certificate(["127.0.0.1"], days)
    (folder / "server.pem").write_text(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(raw, server_side=True) as connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
            except OSError:
                raw.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def by_socket(port: int, floor: TimeFloor, ca: Path) -> None:
    context = client_context(floor, ca_file=ca, system=False)
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(b"hello")
        assert tls.recv(100).startswith(b"HTTP")


def by_httpx(port: int, floor: TimeFloor, ca: Path) -> None:
    with httpx.Client(verify=client_context(floor, ca_file=ca, system=False), trust_env=False) as client:
        try:
            assert client.get(f"https://127.0.0.1:{port}/").text == "ok"
        except httpx.ConnectError as error:
            raise ssl.SSLCertVerificationError(1, str(error)) from error


def by_asyncio(port: int, floor: TimeFloor, ca: Path) -> None:
    async def ask() -> None:
        context = client_context(floor, ca_file=ca, system=False)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"hello")
        assert (await reader.read(100)).startswith(b"HTTP")
        writer.close()
        await writer.wait_closed()

    asyncio.run(ask())


ways = pytest.mark.parametrize("connect", [by_socket, by_httpx, by_asyncio])


@ways
@pytest.mark.parametrize("years", [-5, 0, 5])
def test_a_clock_that_is_years_off_does_not_matter(connect: Connect, years: int, tmp_path: Path) -> None:
    """The certificate is of a time that lies `years` after this machine's clock, or before it: so the clock is off."""
    moment = time.time() + years * YEAR
    floor = TimeFloor(trusted=lambda: False)
    floor._value = min(floor.value, moment - 1)  # software of that time
    with server(tmp_path, max(moment, FIRST + 86_400) if years >= 0 else moment) as port:
        connect(port, floor, tmp_path / CERTIFICATE_FILE)


@ways
def test_a_certificate_that_ended_before_the_floor_is_refused(connect: Connect, tmp_path: Path) -> None:
    floor = TimeFloor(trusted=lambda: False)
    with server(tmp_path, FIRST + YEAR) as port:
        connect(port, floor, tmp_path / CERTIFICATE_FILE)
        floor.saw(FIRST + YEAR + 31 * 86_400)
        with pytest.raises(ssl.SSLCertVerificationError, match="it ended on 2027-01-31"):
            connect(port, floor, tmp_path / CERTIFICATE_FILE)


@ways
def test_a_clock_that_was_set_counts(connect: Connect, tmp_path: Path) -> None:
    floor = TimeFloor(trusted=lambda: True)
    with (
        server(tmp_path, time.time() + YEAR) as port,
        pytest.raises(ssl.SSLCertVerificationError, match="not valid before"),
    ):
        connect(port, floor, tmp_path / CERTIFICATE_FILE)
    with (
        server(tmp_path, time.time() - 60 * 86_400) as port,
        pytest.raises(ssl.SSLCertVerificationError, match="it ended on"),
    ):
        connect(port, floor, tmp_path / CERTIFICATE_FILE)
    assert floor.value == pytest.approx(time.time(), abs=60)


@ways
def test_another_authority_is_refused_whatever_the_time(connect: Connect, tmp_path: Path) -> None:
    Authority(tmp_path / "other")
    with server(tmp_path, time.time()) as port, pytest.raises(ssl.SSLCertVerificationError):
        connect(port, TimeFloor(trusted=lambda: False), tmp_path / "other" / CERTIFICATE_FILE)


def test_the_floor_only_rises_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "floor"
    floor = TimeFloor(path, trusted=lambda: False)
    assert floor.value == FIRST
    floor.saw(FIRST + YEAR)
    floor.saw(FIRST)
    assert TimeFloor(path).value == floor.value == FIRST + YEAR
    path.write_text("rubbish")
    assert TimeFloor(path).value == FIRST


def test_several_of_one_file_never_lower_it(tmp_path: Path) -> None:
    """The link to the broker and the one to the fleet each have a floor."""
    path = tmp_path / "floor"
    one, two = TimeFloor(path, trusted=lambda: False), TimeFloor(path, trusted=lambda: False)
    one.saw(FIRST + YEAR)
    two.saw(FIRST + 86_400)
    assert two.value == TimeFloor(path).value == FIRST + YEAR


def test_a_peer_cannot_move_the_floor_beyond_its_own_certificate() -> None:
    floor = TimeFloor(trusted=lambda: False)
    certificate = {"notBefore": "Jan  1 00:00:00 2027 GMT", "notAfter": "Mar  1 00:00:00 2027 GMT"}
    floor.saw_peer(FIRST + 10 * YEAR, certificate)
    assert floor.value == FIRST
    floor.saw_peer(FIRST + YEAR + 86_400, certificate)
    assert floor.value == FIRST + YEAR + 86_400


def test_a_full_disk_is_no_reason_to_refuse_a_connection(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    TimeFloor(tmp_path / "file" / "floor", trusted=lambda: False).saw(FIRST + YEAR)
