"""API keys and TLS on a real service."""

from __future__ import annotations

import datetime
import ipaddress
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from scripts.service import DeviceService
from tests.e2e.client import Client, text_of
from tests.e2e.service import STARTER, edgewise, running


@pytest.fixture(scope="module")
def guarded() -> Iterator[DeviceService]:
    """A service that asks for a key on loopback too."""
    with running(environment={"EDGEWISE_SECURITY__REQUIRE_KEY": "true"}) as service:
        yield service


def new_key(service: DeviceService, name: str, *flags: str) -> str:
    return str(json.loads(edgewise(service.home, "keys", "new", name, "--json", *flags))["key"])


def status(service: DeviceService, key: str | None, path: str = "/v1/models") -> int:
    with Client(service.url, key=key) as client:
        return client.http.get(path).status_code


def test_without_a_key_only_health_answers(guarded: DeviceService) -> None:
    assert {path: status(guarded, None, path) for path in ("/healthz", "/readyz")} == {"/healthz": 200, "/readyz": 200}
    for path in ("/v1/models", "/metrics", "/openapi.json", "/edgewise/v1/requests", "/nowhere"):
        assert status(guarded, None, path) == 401
        assert status(guarded, "not-a-key", path) == 401


def test_a_key_works_until_it_is_revoked(guarded: DeviceService) -> None:
    key = new_key(guarded, "integrator")
    with Client(guarded.url, key=key, model=STARTER) as client:
        assert "Paris" in text_of(
            client.chat("What is the capital of France?", temperature=0, max_completion_tokens=16)
        )
        edgewise(guarded.home, "keys", "revoke", "integrator")
        assert client.http.get("/v1/models").status_code == 401


def test_a_key_opens_only_its_scope(guarded: DeviceService) -> None:
    key = new_key(guarded, "dashboard", "--scope", "metrics")
    assert status(guarded, key, "/metrics") == 200
    assert status(guarded, key, "/v1/models") == 403
    assert status(guarded, key, "/edgewise/v1/requests") == 403


def test_the_key_is_nowhere_on_disk(guarded: DeviceService) -> None:
    key = new_key(guarded, "secret")
    assert status(guarded, key) == 200
    files = [path for path in guarded.home.iterdir() if path.is_file()]
    assert files
    assert not [path for path in files if key.encode() in path.read_bytes()]


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, valid for an hour, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "edgewise test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    key_file.chmod(0o600)
    return cert_file, key_file


def test_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    environment = {"EDGEWISE_TLS__CERT": str(cert), "EDGEWISE_TLS__KEY": str(key)}
    trust = ssl.create_default_context(cafile=cert)
    with running(environment=environment, scheme="https", verify=trust) as service:
        with Client(service.url, model=STARTER, verify=trust) as client:
            answer = client.stream("What is the capital of France?", temperature=0, max_completion_tokens=16)
            assert "Paris" in answer.text
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
            httpx.get(f"{service.url}/healthz", trust_env=False)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{service.port}/healthz", trust_env=False)
        if shutil.which("curl"):
            command = ["curl", "-sS", "--fail", "--cacert", str(cert), f"{service.url}/healthz"]
            assert subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0
