"""Certificates of servers: renewed by the fleet service at two thirds of their life, in use without a connection that drops."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from edgewise.cloud.fleet.enrolment.authority import CERTIFICATE_FILE, FOLDER, Authority
from edgewise.cloud.fleet.enrolment.servers import follow_tls, renew_servers, server_files
from edgewise.core.clock import FakeClock
from edgewise.core.errors import ConfigError
from edgewise.core.settings import load_settings
from edgewise.security.tls import TlsFiles, check_tls
from scripts.service import edgewise_command, edgewise_environment, free_port
from tests.cloud.fleet.test_service import LATE_S, eventually
from tests.cloud.fleet_trust.test_broker import FleetBroker, broker, connected

__all__ = ["broker"]

DAY = 86_400.0
NAMES = ["fleet.example", "127.0.0.1"]


def issued(folder: Path, authority: Path, days_ago: float, days: float = 90.0) -> tuple[Path, Path]:
    """Certificate and key of a server, as `edgewise fleet certificate` wrote them so long ago."""
    folder.mkdir(exist_ok=True)
    then = Authority(authority, clock=FakeClock(time.time() - days_ago * DAY))
    for name, text in zip(("server.crt", "server.key"), then.server_certificate(NAMES, days), strict=True):
        (folder / name).write_text(text)
    return folder / "server.crt", folder / "server.key"


def serial(der: bytes) -> int:
    return x509.load_der_x509_certificate(der).serial_number


def shown(port: int, client: Path | None = None) -> int:
    """Serial number of the certificate that a new connection meets."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client is not None:
        context.load_cert_chain(client)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain) as connection,
    ):
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return serial(der)


def of(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def shows(port: int, path: Path, client: Path | None = None) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await asyncio.to_thread(shown, port, client) == of(path)

    return check


def test_a_certificate_is_renewed_at_two_thirds_of_its_life_and_no_other_is(tmp_path: Path) -> None:
    authority = Authority(tmp_path / FOLDER)
    early, _ = issued(tmp_path / "early", tmp_path / FOLDER, 59)
    due, key = issued(tmp_path / "due", tmp_path / FOLDER, 61)
    ended, _ = issued(tmp_path / "ended", tmp_path / FOLDER, 400)
    foreign, _ = issued(tmp_path / "foreign", tmp_path / "another" / FOLDER, 400)
    before, untouched = x509.load_pem_x509_certificate(due.read_bytes()), (early.read_text(), foreign.read_text())
    assert renew_servers(authority, [early, due, ended, foreign, tmp_path / "missing.crt"]) == [due, ended]
    assert (early.read_text(), foreign.read_text()) == untouched
    after = x509.load_pem_x509_certificate(due.read_bytes())
    after.verify_directly_issued_by(authority._certificate)
    names = [one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for one in (before, after)]
    assert names[0] == names[1]
    assert after.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value == x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH]
    )
    assert (
        after.not_valid_after_utc - after.not_valid_before_utc
        == before.not_valid_after_utc - before.not_valid_before_utc
    )
    assert check_tls(due, key) is not None  # they belong together
    assert renew_servers(authority, [due, ended]) == []
    early.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"early/server\.crt: it holds no certificate"):
        renew_servers(authority, [early])


def test_the_files_are_those_of_the_broker_and_of_this_service(tmp_path: Path) -> None:
    values = {"home": str(tmp_path), "tls.cert": "/etc/a.crt", "tls.key": "/etc/a.key"}
    settings = load_settings(None, values, environ={}).settings
    assert server_files(settings) == [tmp_path / "broker" / "server.crt", Path("/etc/a.crt")]


async def test_the_broker_takes_it_into_use_and_keeps_its_connections(broker: FleetBroker) -> None:
    folder, process = broker.config.conf.parent, broker.process.process
    assert process is not None
    device = broker.device("d1")
    issued(folder, broker.folder / FOLDER, 61)
    process.send_signal(signal.SIGHUP)
    await eventually(shows(broker.port, folder / "server.crt", device.cert_file))
    async with connected(device) as (connection, _):
        assert renew_servers(broker.authority, [folder / "server.crt"])
        process.send_signal(signal.SIGHUP)
        await eventually(shows(broker.port, folder / "server.crt", device.cert_file))
        await connection.publish("f/1/d/d1/up/live", b"x")
        assert not connection.ended.done()
        async with connected(broker.device("d2")) as (other, _):  # one that checks the certificate
            await other.publish("f/1/d/d2/up/live", b"x")


async def test_a_server_takes_new_files_into_use_and_keeps_its_connections(tmp_path: Path) -> None:
    cert, key = issued(tmp_path / "tls", tmp_path / FOLDER, 61)
    files = check_tls(cert, key)
    assert isinstance(files, TlsFiles)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    following = asyncio.create_task(follow_tls(files, lambda: context, look_s=0.01))
    client = ssl.create_default_context(cafile=str(tmp_path / FOLDER / CERTIFICATE_FILE))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
    try:
        first = of(cert)
        assert await asyncio.to_thread(shown, port) == first
        assert renew_servers(Authority(tmp_path / FOLDER), [cert])
        await eventually(shows(port, cert))
        second = of(cert)
        good = cert.read_bytes()
        cert.write_bytes(b"half of a file")
        await asyncio.sleep(0.1)  # whether it has looked or not, the next ones must meet the certificate that works
        assert await asyncio.to_thread(shown, port) == second != first
        cert.write_bytes(good)
        issued(tmp_path / "tls", tmp_path / FOLDER, 0)  # another key too
        await eventually(shows(port, cert))
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
    finally:
        writer.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        server.close()


def test_a_service_whose_certificate_ended_while_it_was_down_starts_with_a_new_one(tmp_path: Path) -> None:
    home, port = tmp_path / "home", free_port()
    cert, key = issued(tmp_path / "tls", home / FOLDER, 400)
    more = {
        "FLEET__BROKER": "external",
        "MQTT__HOST": "127.0.0.1",
        "MQTT__PORT": str(free_port()),
        "FLEET__PORT": str(port),
    }
    more |= {"TLS__CERT": str(cert), "TLS__KEY": str(key)}
    environment = edgewise_environment(home, {f"EDGEWISE_{name}": value for name, value in more.items()})
    client = ssl.create_default_context(cafile=str(home / FOLDER / CERTIFICATE_FILE))
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(edgewise_command("fleet", "serve"), env=environment, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=client, timeout=30) as asking:
            deadline = time.monotonic() + LATE_S
            while not answers(asking):
                assert process.poll() is None, (tmp_path / "serve.log").read_text()
                assert time.monotonic() < deadline, "it never answered"
                time.sleep(0.05)
    finally:
        process.kill()
        process.wait(30)


def answers(asking: httpx.Client) -> bool:
    try:
        return asking.get("/healthz").status_code == 200
    except httpx.HTTPError:
        return False
