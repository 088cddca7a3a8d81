"""The fleet's certificate authority: signs keys of devices, certificates of servers, and the list of revoked ones.

Its key lies in the state directory, readable by its owner only. Who has it can be any device, so that folder is backed up and
guarded like a password. Profiles follow RFC 5280: a device's certificate is good for clients only, a server's for servers only,
so that neither can stand in for the other at the broker.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgewise.core.clock import EARLIEST_PLAUSIBLE, Clock, SystemClock
from edgewise.core.errors import ConfigError, InvalidRequest
from edgewise.core.files import atomic_write, fsync_dir, make_folder, own_like_parent, translate_os_errors

FOLDER = "fleet-ca"
KEY_FILE, CERTIFICATE_FILE, CRL_FILE = "ca.pem", "ca.crt", "crl.pem"
_LIFE = timedelta(days=30 * 365)
_EARLIER = timedelta(hours=1)  # clocks of the broker's and of this machine differ a little
_CURVES = ("secp256r1", "secp384r1")


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate: PEM, serial number in hex, end in seconds since 1970."""

    pem: str
    serial: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class Csr:
    """A checked request. `fingerprint`: SHA-256 of its public key (DER) in hex."""

    key: ec.EllipticCurvePublicKey
    fingerprint: str


class Authority:
    """Opened, or made at the first use; several processes may do so at once.

    Raises:
        StorageError: The disk refuses.
        ConfigError: The key file is damaged.
    """

    def __init__(self, folder: Path, *, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        for made in (folder.parent, folder):  # of the parent, the state directory, this may be the first use
            make_folder(made, mode=0o750)
        own_like_parent(folder)
        path = folder / KEY_FILE
        if not path.exists():
            _create(path)
        self._key, self._certificate = _open(path)
        self.pem = _pem(self._certificate)
        if not self.crl_file.exists():
            self.write_crl(())
        if not (folder / CERTIFICATE_FILE).exists():
            atomic_write(folder / CERTIFICATE_FILE, self.pem)

    def __repr__(self) -> str:
        return f"Authority({str(self._folder)!r})"

    @property
    def crl_file(self) -> Path:
        return self._folder / CRL_FILE

    def device_certificate(self, csr: Csr, uid: str, days: float) -> Issued:
        """For the key of `csr`, in the name of `uid`, whatever else the request asked for."""
        builder = self._builder(uid, csr.key, timedelta(days=days), ExtendedKeyUsageOID.CLIENT_AUTH)
        return self._signed(builder)

    def server_certificate(self, names: Sequence[str], days: float) -> tuple[str, str]:
        """Certificate and a new key, PEM, of a server with these names and addresses."""
        if not names:
            raise InvalidRequest("A server's certificate needs a name or an address.", param="names")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(names[0], key.public_key(), timedelta(days=days), ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), False)
        return self._signed(builder).pem, _key_pem(key)

    def renewed(self, pem: str) -> str | None:
        """A server's certificate for the same names, key and length of life again, PEM; None if it is not one of this authority,
        or less than two thirds of its life are over. The same key, so that one file is replaced and never half of a pair.

        Raises:
            ConfigError: The text is no certificate in PEM.
        """
        try:
            old = x509.load_pem_x509_certificate(pem.encode())
        except ValueError as error:
            raise ConfigError("it holds no certificate in PEM") from error
        try:
            old.verify_directly_issued_by(self._certificate)
            names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except (InvalidSignature, TypeError, ValueError, x509.ExtensionNotFound):
            return None
        key = old.public_key()
        life = old.not_valid_after_utc - old.not_valid_before_utc
        if not isinstance(key, ec.EllipticCurvePublicKey) or self._now() < old.not_valid_before_utc + life * 2 / 3:
            return None
        if old.not_valid_after_utc >= self._certificate.not_valid_after_utc:
            return None  # the authority itself ends then
        (name,) = old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        builder = self._builder(str(name.value), key, life - _EARLIER, ExtendedKeyUsageOID.SERVER_AUTH)
        return self._signed(builder.add_extension(names.value, critical=False)).pem

    def write_crl(self, revoked: Iterable[tuple[str, float]]) -> None:
        """The list of revoked certificates, for the broker: serial in hex and when, seconds since 1970.

        Its next update lies as far away as the authority's end: a broker refuses everybody once a list is overdue, and a fleet
        service that is down must not cut off its devices.
        """
        now = self._now()
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._certificate.subject)
        builder = builder.last_update(now - _EARLIER).next_update(self._certificate.not_valid_after_utc)
        for serial, at in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(int(serial, 16))
            builder = builder.add_revoked_certificate(
                entry.revocation_date(datetime.fromtimestamp(at, tz=timezone.utc)).build()
            )
        crl = builder.sign(self._key, hashes.SHA256())
        atomic_write(self.crl_file, crl.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, name: str, key: ec.EllipticCurvePublicKey, life: timedelta, usage: x509.ObjectIdentifier
    ) -> x509.CertificateBuilder:
        now = self._now()
        issuer = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name[:64]))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(min(now + life, self._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        )

    def _signed(self, builder: x509.CertificateBuilder) -> Issued:
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(_pem(certificate), f"{certificate.serial_number:x}", certificate.not_valid_after_utc.timestamp())

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.time(), tz=timezone.utc).replace(microsecond=0)


def read_csr(pem: str) -> Csr:
    """Check a request for a certificate: it must be signed by its own key, on a curve of 256 or 384 bits.

    Raises:
        InvalidRequest: It is not; the message says why.
    """
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        key = request.public_key()
        signed = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidRequest("`csr` is no request for a certificate in PEM.", param="csr") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise InvalidRequest(f"`csr`: the key must be one of {', '.join(_CURVES)}.", param="csr")
    if not signed:
        raise InvalidRequest("`csr` is not signed by its own key.", param="csr")
    return Csr(key, fingerprint(key))


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 of the public key (SubjectPublicKeyInfo, DER) in hex."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _create(path: Path) -> None:
    """A new key and its certificate in one file, so that they always belong together; the first of several makers wins."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Edgewise fleet " + os.urandom(4).hex())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(EARLIEST_PLAUSIBLE)
        .not_valid_after(EARLIEST_PLAUSIBLE + _LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    with translate_os_errors("write", path):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write((_key_pem(key) + _pem(certificate)).encode())
                file.flush()
                os.fsync(file.fileno())
            own_like_parent(Path(temporary))
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            Path(temporary).unlink()
        fsync_dir(path.parent)


def _open(path: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    with translate_os_errors("read", path):
        pem = path.read_bytes()
    try:
        key = serialization.load_pem_private_key(pem, password=None)
        certificate = x509.load_pem_x509_certificate(pem)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is damaged; restore it from a backup: devices trust no other authority") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} holds no EC key; restore it from a backup")
    return key, certificate


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
