from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.clock import FakeClock
from edgewise.core.errors import ConfigError
from edgewise.security.tls import CertificateDatesError, TlsFiles, check_tls, validity

NOW = datetime.fromtimestamp(FakeClock().time(), tz=timezone.utc)
Key = ec.EllipticCurvePrivateKey


def certificate(key: Key, start: datetime, end: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "device")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), start, end)
    return builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False).sign(
        key, hashes.SHA256()
    )


def pem(key: Key, passphrase: bytes | None = None) -> bytes:
    hidden = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


Make = Callable[..., tuple[Path, Path]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def write(
        start: datetime = NOW - timedelta(days=1), end: datetime = NOW + timedelta(days=90), mode: int = 0o600
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        (tmp_path / "cert.pem").write_bytes(certificate(key, start, end).public_bytes(serialization.Encoding.PEM))
        (tmp_path / "key.pem").write_bytes(pem(key))
        (tmp_path / "key.pem").chmod(mode)
        return tmp_path / "cert.pem", tmp_path / "key.pem"

    return write


def test_a_good_pair(make: Make) -> None:
    cert, key = make()
    files = check_tls(cert, key, clock=FakeClock())
    assert files == TlsFiles(
        cert=cert,
        key=key,
        not_before=(NOW - timedelta(days=1)).replace(microsecond=0),
        not_after=(NOW + timedelta(days=90)).replace(microsecond=0),
    )


def test_uvicorn_serves_with_what_we_return(make: Make) -> None:
    files = check_tls(*make(), clock=FakeClock())
    assert files is not None
    config = uvicorn.Config("none:app", **files.uvicorn_options())  # type: ignore[arg-type]
    config.load_app = lambda: lambda scope: None  # type: ignore[method-assign]
    config.load()
    assert isinstance(config.ssl, ssl.SSLContext)
    assert config.ssl.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert handshake(config.ssl) in {"TLSv1.2", "TLSv1.3"}


def handshake(server_context: ssl.SSLContext) -> str | None:
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with server_context.wrap_socket(ours, server_side=True) as tls:
            tls.recv(1)

    server = threading.Thread(target=serve)
    server.start()
    with client_context.wrap_socket(theirs) as tls:
        tls.send(b"x")
        version = tls.version()
    server.join()
    return version


def test_nothing_set_is_plain_http() -> None:
    assert check_tls(None, None) is None


def test_one_of_two(make: Make) -> None:
    cert, _ = make()
    with pytest.raises(ConfigError, match="both"):
        check_tls(cert, None)


@pytest.mark.parametrize("missing", ["cert", "key"])
def test_a_missing_file_is_named(make: Make, missing: str) -> None:
    cert, key = make()
    {"cert": cert, "key": key}[missing].unlink()
    with pytest.raises(ConfigError, match=rf"tls\.{missing}: .*{missing}\.pem cannot be read \(No such file"):
        check_tls(cert, key)


def test_a_folder_is_no_file(make: Make, tmp_path: Path) -> None:
    cert, _ = make()
    with pytest.raises(ConfigError, match="directory"):
        check_tls(cert, tmp_path)


def test_a_key_of_another_certificate(make: Make) -> None:
    cert, key = make()
    key.write_bytes(pem(ec.generate_private_key(ec.SECP256R1())))
    with pytest.raises(ConfigError, match="does not belong to the certificate"):
        check_tls(cert, key, clock=FakeClock())


def test_a_key_with_a_passphrase_does_not_wait_for_a_terminal(make: Make) -> None:
    cert, key = make()
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    key.write_bytes(pem(private, b"secret"))
    with pytest.raises(ConfigError, match="passphrase"):
        check_tls(cert, key, clock=FakeClock())


@pytest.mark.parametrize("content", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"])
def test_files_that_are_not_pem(make: Make, content: bytes) -> None:
    cert, key = make()
    good = key.read_bytes()
    key.write_bytes(content)
    with pytest.raises(ConfigError, match="must be PEM"):
        check_tls(cert, key)
    key.write_bytes(good)
    cert.write_bytes(content)
    with pytest.raises(ConfigError, match=r"tls\.cert"):
        check_tls(cert, key)


def test_expired(make: Make) -> None:
    with pytest.raises(CertificateDatesError, match=r"expired on \d{4}-\d\d-\d\d .*renewed"):
        check_tls(*make(NOW - timedelta(days=9), NOW - timedelta(days=1)), clock=FakeClock())


def test_not_valid_yet_points_at_the_clock(make: Make) -> None:
    with pytest.raises(CertificateDatesError, match=r"not valid before .* check the certificate and the clock"):
        check_tls(*make(NOW + timedelta(days=1)), clock=FakeClock())


def test_warnings(make: Make) -> None:
    files = check_tls(*make(end=NOW + timedelta(days=3, hours=1), mode=0o644), clock=FakeClock())
    assert files is not None
    assert [warning.split()[0] for warning in files.warnings] == ["the", "every"]
    assert "expires in 3 days" in files.warnings[0]
    assert "chmod o-r" in files.warnings[1]


@pytest.mark.parametrize(("start", "end"), [(1995, 2049), (2049, 2050), (2050, 2051), (1999, 9999)])
def test_both_notations_of_time(start: int, end: int) -> None:
    dates = (
        datetime(start, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        datetime(end, 12, 31, 23, 59, 59, tzinfo=timezone.utc),
    )
    built = certificate(ec.generate_private_key(ec.SECP256R1()), *dates)
    assert validity(built.public_bytes(serialization.Encoding.DER)) == dates


DER = certificate(ec.generate_private_key(ec.SECP256R1()), NOW, NOW + timedelta(days=1)).public_bytes(
    serialization.Encoding.DER
)


@given(st.binary(max_size=200) | st.integers(0, len(DER) - 1).map(lambda n: DER[:n]))
def test_hostile_der_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"not an X\.509 certificate"):
        validity(data)
