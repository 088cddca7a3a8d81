"""Devices enrol, renew and are shut out, on a real database and a real authority."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from sqlalchemy import select

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import AuditRow, ClaimCode, Device, EventRow
from edgewise.cloud.fleet.enrolment.authority import FOLDER, KEY_FILE, Authority, fingerprint
from edgewise.cloud.fleet.enrolment.broker_config import write_broker_config
from edgewise.cloud.fleet.enrolment.service import EnrolmentService
from edgewise.core.clock import FakeClock
from edgewise.core.errors import ConfigError, InvalidRequest, NotFound, NotPermitted, RateLimited
from edgewise.core.settings import Settings
from edgewise.core.settings_fleet import FleetSettings
from edgewise.security.keys import KeyStore
from edgewise.wire.fleet import Enrolled, EnrolPoll, EnrolRequest, RenewalQuestion, RenewRequest, renewal_text

DAY = 86_400.0


def make_csr(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, name: str = "admin") -> str:
    """A request that asks for a name that the device must not get."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@dataclass
class Stick:
    """A device's side of enrolment, without its files."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key.public_key())

    def request(self, code: str) -> EnrolRequest:
        return EnrolRequest(code=code, csr=make_csr(self.key), name="Press 4", hardware={"cpu": "arm64"})

    def renewal(self, nonce: str, new: Stick, signer: Stick | None = None) -> RenewRequest:
        csr = make_csr(new.key)
        signature = (signer or self).key.sign(renewal_text(nonce, csr), ec.ECDSA(hashes.SHA256()))
        return RenewRequest(
            fingerprint=self.fingerprint, nonce=nonce, csr=csr, signature=base64.b64encode(signature).decode()
        )


@pytest.fixture
def enrolment(db: FleetDatabase, clock: FakeClock, tmp_path: Path) -> EnrolmentService:
    settings = Settings(
        home=tmp_path, fleet=FleetSettings(broker_url="mqtts://broker.example:8884", certificate_days=90)
    )
    return EnrolmentService(db, Changes(), settings, clock=clock)


async def code_for(enrolment: EnrolmentService, admin: Actor, **options: object) -> str:
    view = await enrolment.add_code(admin, **{"auto_accept": True, **options})  # type: ignore[arg-type]
    assert view.code is not None
    return view.code


async def renew(enrolment: EnrolmentService, old: Stick, new: Stick) -> str:
    nonce = (await enrolment.challenge(RenewalQuestion(fingerprint=old.fingerprint))).nonce
    answer = await enrolment.renew(old.renewal(nonce, new), "10.0.0.1")
    assert answer.certificate is not None
    return answer.certificate


def revoked(enrolment: EnrolmentService) -> set[int]:
    crl = x509.load_pem_x509_crl(enrolment.authority.crl_file.read_bytes())
    authority = x509.load_pem_x509_certificate(enrolment.authority.pem.encode())
    public = authority.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert crl.is_signature_valid(public)
    return {entry.serial_number for entry in crl}


def serial(pem: str | None) -> int:
    assert pem is not None
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


async def test_a_code_makes_a_device(
    enrolment: EnrolmentService, admin: Actor, db: FleetDatabase, clock: FakeClock
) -> None:
    device = Stick()
    code = await code_for(enrolment, admin, labels={"site": "lyon"})
    answer = await enrolment.enrol(device.request(code.lower().replace("-", " ")), "10.0.0.1")
    assert (answer.state, answer.mqtt_host, answer.mqtt_port, answer.mqtt_tls) == (
        "accepted",
        "broker.example",
        8884,
        True,
    )
    assert answer.certificate is not None
    assert answer.ca == enrolment.authority.pem
    assert answer.renew_s == pytest.approx(60 * DAY, abs=3700)
    certificate = x509.load_pem_x509_certificate(answer.certificate.encode())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(enrolment.authority.pem.encode()))
    names = [attribute.value for attribute in certificate.subject]
    assert names == [answer.uid]  # whatever the request asked for
    assert certificate.not_valid_after_utc.timestamp() == clock.time() + 90 * DAY
    row = await db.read(lambda session: session.get(Device, answer.uid))
    assert row is not None
    assert (row.tenant_id, row.name, row.labels, row.state) == (admin.tenant, "Press 4", {"site": "lyon"}, "never-seen")


async def test_a_code_is_used_once_but_a_lost_answer_is_given_again(enrolment: EnrolmentService, admin: Actor) -> None:
    device, code = Stick(), await code_for(enrolment, admin)
    first = await enrolment.enrol(device.request(code), "a")
    again = await enrolment.enrol(device.request(code), "a")
    assert (again.uid, again.certificate) == (first.uid, first.certificate)
    with pytest.raises(NotPermitted, match="used up"):
        await enrolment.enrol(Stick().request(code), "a")
    with pytest.raises(InvalidRequest, match="known already"):
        await enrolment.enrol(device.request(await code_for(enrolment, admin)), "a")


async def test_codes_end_and_are_not_stored(
    enrolment: EnrolmentService, admin: Actor, db: FleetDatabase, clock: FakeClock
) -> None:
    code = await code_for(enrolment, admin, ttl_s=60.0, uses=2)
    await enrolment.enrol(Stick().request(code), "a")
    assert code.replace("-", "") not in str(await db.read(lambda s: s.execute(select(ClaimCode.__table__)).all()))
    assert [view.uses for view in await enrolment.codes(admin)] == [1]
    clock.advance(60.0)
    with pytest.raises(NotPermitted):
        await enrolment.enrol(Stick().request(code), "a")
    assert await enrolment.codes(admin) == []
    view = await enrolment.add_code(admin)
    await enrolment.delete_code(admin, view.id)
    with pytest.raises(NotPermitted):
        await enrolment.enrol(Stick().request(view.code or ""), "a")


async def test_guesses_of_codes_are_limited(enrolment: EnrolmentService, admin: Actor) -> None:
    code = await code_for(enrolment, admin)
    for _ in range(200):
        with pytest.raises(NotPermitted):
            await enrolment.enrol(Stick(GUESSER).request("AAAAA-AAAAA-AAAAA-AAAAA"), "10.0.0.1")
    with pytest.raises(RateLimited):
        await enrolment.enrol(Stick().request(code), "10.0.0.1")
    assert (await enrolment.enrol(Stick().request(code), "10.0.0.2")).state == "accepted"


GUESSER = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize("accept", [True, False])
async def test_an_admin_decides(enrolment: EnrolmentService, admin: Actor, db: FleetDatabase, accept: bool) -> None:
    waiting = await enrolment.enrol(Stick().request(await code_for(enrolment, admin, auto_accept=False)), "10.0.0.1")
    assert (waiting.state, waiting.certificate, waiting.retry_s) == ("pending", None, 10.0)
    assert await db.read(lambda session: session.scalars(select(Device)).all()) == []
    key = (await enrolment.keys(admin, state="pending"))[0]
    assert key.facts["hardware"] == {"cpu": "arm64"}
    with pytest.raises(NotPermitted):
        await enrolment.decide(replace(admin, role="operator"), key.id, True)
    await enrolment.decide(admin, key.id, accept)
    answer = await enrolment.status(EnrolPoll(ticket=waiting.ticket), "10.0.0.1")
    assert answer.state == ("accepted" if accept else "refused")
    assert (answer.certificate is not None) == accept
    with pytest.raises(InvalidRequest, match="does not wait"):
        await enrolment.decide(admin, key.id, True)
    with pytest.raises(NotPermitted):
        await enrolment.status(EnrolPoll(ticket="a" * 43), "10.0.0.1")


@pytest.mark.parametrize(
    "csr",
    [
        "rubbish",
        make_csr(rsa.generate_private_key(65537, 2048)),
        make_csr(ec.generate_private_key(ec.SECP192R1())),
        make_csr(GUESSER)[:-80] + "AAAA" + make_csr(GUESSER)[-76:],
    ],
    ids=["no PEM", "RSA", "small curve", "damaged"],
)
async def test_bad_requests_are_refused(enrolment: EnrolmentService, admin: Actor, csr: str) -> None:
    code = await code_for(enrolment, admin)
    with pytest.raises(InvalidRequest) as refused:
        await enrolment.enrol(EnrolRequest(code=code, csr=csr), "a")
    assert refused.value.param == "csr"
    assert (await enrolment.codes(admin))[0].uses == 1


async def test_renewal_is_due_at_two_thirds(enrolment: EnrolmentService, admin: Actor, clock: FakeClock) -> None:
    device = Stick()
    await enrolment.enrol(device.request(await code_for(enrolment, admin)), "a")
    question = RenewalQuestion(fingerprint=device.fingerprint)
    assert (await enrolment.challenge(question)).renew_s == pytest.approx(60 * DAY, abs=3700)
    clock.advance(61 * DAY)
    assert (await enrolment.challenge(question)).renew_s == 0.0


async def test_an_expired_certificate_is_renewed(enrolment: EnrolmentService, admin: Actor, clock: FakeClock) -> None:
    """Only its key counts: a device that was off for a year comes back without a visit."""
    old, new = Stick(), Stick()
    first = await enrolment.enrol(old.request(await code_for(enrolment, admin)), "a")
    clock.advance(365 * DAY)
    certificate = x509.load_pem_x509_certificate((await renew(enrolment, old, new)).encode())
    assert fingerprint(certificate.public_key()) == new.fingerprint  # type: ignore[arg-type]
    assert certificate.subject.rfc4514_string() == f"CN={first.uid}"


async def test_a_lost_renewal_is_asked_for_again(enrolment: EnrolmentService, admin: Actor) -> None:
    """With the same new key, or with another one after a crash; the old key stays good until its successor has renewed."""
    old, lost, new, next_one = Stick(), Stick(), Stick(), Stick()
    first = await enrolment.enrol(old.request(await code_for(enrolment, admin)), "a")
    pem = await renew(enrolment, old, lost)
    assert await renew(enrolment, old, lost) == pem
    current = await renew(enrolment, old, new)
    assert revoked(enrolment) == {serial(pem)}
    await renew(enrolment, new, next_one)
    assert revoked(enrolment) == {serial(pem), serial(first.certificate)}
    assert serial(current) not in revoked(enrolment)
    assert {key.state for key in await enrolment.keys(admin, uid=first.uid)} == {"active", "replaced"}


async def test_a_copied_key_is_found_out(enrolment: EnrolmentService, admin: Actor, db: FleetDatabase) -> None:
    device, thief = Stick(), Stick()
    await enrolment.enrol(device.request(await code_for(enrolment, admin)), "a")
    await renew(enrolment, device, thief)  # somebody with a copy of the device's key
    await renew(enrolment, device, Stick())  # the device itself, a little later
    with pytest.raises(NotPermitted):
        await enrolment.challenge(RenewalQuestion(fingerprint=thief.fingerprint))
    nonce = (await enrolment.challenge(RenewalQuestion(fingerprint=device.fingerprint))).nonce
    with pytest.raises(NotPermitted, match="replaced"):
        await enrolment.renew(thief.renewal(nonce, Stick()), "203.0.113.9")
    event = (await db.read(lambda s: s.scalars(select(EventRow).where(EventRow.kind == "key.reused")).all()))[0]
    assert event.severity == "critical"
    assert "203.0.113.9" in event.message


async def test_only_the_key_itself_renews(enrolment: EnrolmentService, admin: Actor, clock: FakeClock) -> None:
    device, other = Stick(), Stick()
    await enrolment.enrol(device.request(await code_for(enrolment, admin)), "a")
    nonce = (await enrolment.challenge(RenewalQuestion(fingerprint=device.fingerprint))).nonce
    with pytest.raises(NotPermitted, match="signature"):
        await enrolment.renew(device.renewal(nonce, other, signer=other), "a")
    good = device.renewal(nonce, other)
    stolen = good.model_copy(update={"csr": make_csr(Stick().key)})  # a signature of another CSR
    with pytest.raises(NotPermitted, match="signature"):
        await enrolment.renew(stolen, "a")
    with pytest.raises(NotPermitted, match="nonce"):
        await enrolment.renew(device.renewal("1.x.forged-by-nobody", other), "a")
    with pytest.raises(InvalidRequest, match="make a new key"):
        await enrolment.renew(device.renewal(nonce, device), "a")
    clock.advance(601.0)
    with pytest.raises(NotPermitted, match="too old"):
        await enrolment.renew(good, "a")


async def test_a_revoked_key_is_of_no_use(enrolment: EnrolmentService, admin: Actor) -> None:
    device = Stick()
    answer = await enrolment.enrol(device.request(await code_for(enrolment, admin)), "a")
    assert revoked(enrolment) == set()
    key = (await enrolment.keys(admin, uid=answer.uid))[0]
    await enrolment.revoke(admin, key.id)
    assert revoked(enrolment) == {serial(answer.certificate)}
    with pytest.raises(NotPermitted, match="revoked"):
        await enrolment.challenge(RenewalQuestion(fingerprint=device.fingerprint))
    with pytest.raises(InvalidRequest, match="has ended"):
        await enrolment.revoke(admin, key.id)


async def test_the_broker_is_told_who_is_shut_out(enrolment: EnrolmentService, admin: Actor, tmp_path: Path) -> None:
    """Only who has no key left, and until there is one again."""
    write_broker_config(tmp_path / "broker", enrolment.authority, ["127.0.0.1"])
    access = tmp_path / "broker" / "mosquitto.acl"
    answer = await enrolment.enrol(Stick().request(await code_for(enrolment, admin)), "a")
    assert answer.uid not in access.read_text()
    await enrolment.revoke(admin, (await enrolment.keys(admin))[0].id)
    assert f"user {answer.uid}\ntopic deny #" in access.read_text()
    await enrolment.enrol(Stick().request(await code_for(enrolment, admin, uid=answer.uid)), "a")
    assert answer.uid not in access.read_text()


async def test_a_lost_key_is_replaced(enrolment: EnrolmentService, admin: Actor) -> None:
    """A code for one device gives it a new key; the old one is shut out only once that is accepted."""
    first = await enrolment.enrol(Stick().request(await code_for(enrolment, admin)), "a")
    code = await code_for(enrolment, admin, uid=first.uid, auto_accept=False)
    waiting = await enrolment.enrol(Stick().request(code), "a")
    assert waiting.uid == first.uid
    assert revoked(enrolment) == set()
    await enrolment.decide(admin, (await enrolment.keys(admin, state="pending"))[0].id, True)
    assert revoked(enrolment) == {serial(first.certificate)}
    assert [key.state for key in await enrolment.keys(admin, uid=first.uid)] == ["active", "replaced"]
    with pytest.raises(NotFound):
        await enrolment.add_code(admin, uid="nobody")


async def test_another_tenant_sees_and_changes_nothing(
    enrolment: EnrolmentService, admin: Actor, stranger: Actor
) -> None:
    view = await enrolment.add_code(admin)
    answer = await enrolment.enrol(Stick().request(view.code or ""), "a")
    key = (await enrolment.keys(admin))[0]
    assert await enrolment.keys(stranger) == []
    assert await enrolment.codes(stranger) == []
    calls: list[Callable[[], object]] = [
        lambda: enrolment.decide(stranger, key.id, True),
        lambda: enrolment.revoke(stranger, key.id),
        lambda: enrolment.delete_code(stranger, view.id),
        lambda: enrolment.add_code(stranger, uid=answer.uid),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            await call()  # type: ignore[misc]


async def test_every_step_has_its_line(enrolment: EnrolmentService, admin: Actor, db: FleetDatabase) -> None:
    device = Stick()
    answer = await enrolment.enrol(device.request(await code_for(enrolment, admin, auto_accept=False)), "a")
    key = (await enrolment.keys(admin))[0]
    await enrolment.decide(admin, key.id, True)
    await renew(enrolment, device, Stick())
    await enrolment.revoke(admin, key.id)
    rows = await db.read(lambda session: session.scalars(select(AuditRow).order_by(AuditRow.number)).all())
    assert [(row.action, row.actor) for row in rows] == [
        ("code.add", "ada"),
        ("key.request", answer.uid),
        ("key.accept", "ada"),
        ("key.renew", answer.uid),
        ("key.revoke", "ada"),
    ]
    kinds = await db.read(lambda session: session.scalars(select(EventRow.kind).order_by(EventRow.id)).all())
    assert kinds == ["key.waiting", "key.accepted", "key.renewed", "key.revoked"]


def test_the_authority_stays_and_its_key_is_its_owners(tmp_path: Path) -> None:
    first = Authority(tmp_path / FOLDER)
    assert Authority(tmp_path / FOLDER).pem == first.pem
    path = tmp_path / FOLDER / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("damaged")
    with pytest.raises(ConfigError, match="backup"):
        Authority(tmp_path / FOLDER)


@pytest.fixture
def cloud(db: FleetDatabase, clock: FakeClock, tmp_path: Path) -> Iterator[tuple[EnrolmentService, KeyStore]]:
    """A fleet beside a cloud engine, whose keys it may write."""
    with KeyStore(tmp_path / "cloud" / "keys.db") as keys:
        keys.create("somebody")
        told = FleetSettings(cloud_url="https://cloud.example:8500", cloud_keys=tmp_path / "cloud" / "keys.db")
        yield EnrolmentService(db, Changes(), Settings(home=tmp_path / "fleet", fleet=told), clock=clock), keys


def cloud_key(answer: Enrolled) -> str:
    assert (answer.state, answer.cloud_url) == ("accepted", "https://cloud.example:8500")
    assert answer.cloud_key is not None
    return answer.cloud_key


async def test_a_device_gets_a_key_for_the_cloud_that_ends_with_it(
    cloud: tuple[EnrolmentService, KeyStore], admin: Actor, db: FleetDatabase
) -> None:
    enrolment, keys = cloud
    device, code = Stick(), await code_for(enrolment, admin, cloud=True)
    lost = cloud_key(await enrolment.enrol(device.request(code), "a"))
    answer = await enrolment.enrol(device.request(code), "a")  # the answer before was lost
    token = cloud_key(answer)
    assert keys.verify(lost) is None
    record = keys.verify(token)
    assert record is not None
    assert (record.device, record.scopes) == (answer.uid, frozenset({"inference"}))
    assert token not in str(await db.read(lambda s: s.execute(select(EventRow.__table__)).all()))
    other = await enrolment.enrol(Stick().request(await code_for(enrolment, admin, cloud=True)), "a")
    (key,) = await enrolment.keys(admin, uid=answer.uid)
    await enrolment.revoke(admin, key.id)
    assert keys.verify(token) is None
    assert keys.verify(cloud_key(other)) is not None
    assert [one.name for one in keys.list() if one.revoked_at is None] == ["somebody", f"fleet.{other.uid}"]


async def test_a_device_that_is_replaced_keeps_no_old_key_for_the_cloud(
    cloud: tuple[EnrolmentService, KeyStore], admin: Actor
) -> None:
    enrolment, keys = cloud
    first = await enrolment.enrol(Stick().request(await code_for(enrolment, admin, cloud=True)), "a")
    code, device = await code_for(enrolment, admin, cloud=True, uid=first.uid, auto_accept=False), Stick()
    waiting = await enrolment.enrol(device.request(code), "a")
    assert (waiting.state, waiting.cloud_key) == ("pending", None)
    assert keys.verify(cloud_key(first)) is not None  # nobody has decided
    (pending,) = await enrolment.keys(admin, uid=first.uid, state="pending")
    await enrolment.decide(admin, pending.id, True)
    assert keys.verify(cloud_key(first)) is None
    second = cloud_key(await enrolment.status(EnrolPoll(ticket=waiting.ticket), "a"))
    assert keys.verify(second) is not None
    plain = await enrolment.enrol(Stick().request(await code_for(enrolment, admin, uid=first.uid)), "a")
    assert (plain.state, plain.cloud_key) == ("accepted", None)
    assert keys.verify(second) is None


async def test_no_key_for_the_cloud_without_a_code_that_says_so_or_a_store(
    cloud: tuple[EnrolmentService, KeyStore],
    enrolment: EnrolmentService,
    admin: Actor,
    tmp_path: Path,
    db: FleetDatabase,
) -> None:
    with pytest.raises(InvalidRequest, match=r"fleet\.cloud_keys"):
        await enrolment.add_code(admin, cloud=True)
    with_cloud, _ = cloud
    with pytest.raises(NotPermitted):
        await with_cloud.add_code(Actor(tenant=admin.tenant, name="o", role="operator"), cloud=True)
    plain = await with_cloud.enrol(Stick().request(await code_for(with_cloud, admin)), "a")
    assert (plain.state, plain.cloud_key) == ("accepted", None)
    code = await code_for(with_cloud, admin, cloud=True)
    for path in (tmp_path / "cloud").iterdir():
        path.unlink()
    answer = await with_cloud.enrol(Stick().request(code), "a")
    assert (answer.state, answer.cloud_key) == ("accepted", None)  # it is of use without
    kinds = await db.read(lambda s: s.scalars(select(EventRow.kind).where(EventRow.uid == answer.uid)).all())
    assert "cloud-key.failed" in kinds
    assert not (tmp_path / "cloud" / "keys.db").exists()
