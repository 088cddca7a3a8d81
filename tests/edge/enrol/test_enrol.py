"""A device enrols at a real service over TLS, and its certificate stays alive whatever happens."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from fastapi import FastAPI, Response

from edgewise.core.clock import EARLIEST_PLAUSIBLE, FakeClock
from edgewise.core.errors import ConfigError, InvalidRequest, LinkLost, NotPermitted
from edgewise.core.files import read_secret
from edgewise.core.settings import LoadedSettings, load_settings
from edgewise.core.tls_time import TimeFloor
from edgewise.edge import app
from edgewise.edge.enrol.client import EnrolmentClient, checked_url, fingerprint_of
from edgewise.edge.enrol.enrolment import NotAccepted, StillWaiting, enrol
from edgewise.edge.enrol.folder import EnrolmentFolder, with_enrolment
from edgewise.edge.enrol.renewal import LONGEST_S, Renewal
from edgewise.security.keys import KeyStore
from edgewise.serving import service
from tests.api.harness import until
from tests.cloud.fleet_trust.doubles import served
from tests.edge.enrol.conftest import RunningFleet

DAY = 86_400.0


async def test_a_device_enrols_and_its_settings_follow(fleet: RunningFleet, tmp_path: Path) -> None:
    home = tmp_path / "device"
    membership = await enrol(home, fleet.url, await fleet.code(), name="Press 4", ca_file=fleet.ca_file)
    folder = EnrolmentFolder(home)
    assert folder.read() == membership
    loaded = with_enrolment(load_settings(overrides={"home": home}, environ={}, default_file=tmp_path / "none"))
    mqtt = loaded.settings.mqtt
    assert (mqtt.host, mqtt.port, mqtt.uid) == ("broker.example", 8883, membership.uid)
    assert (mqtt.ca_file, mqtt.cert_file, mqtt.key_file) == (folder.ca, folder.device, folder.device)
    assert loaded.origins["mqtt.host"] == str(folder.file)
    assert folder.device.stat().st_mode & 0o777 == 0o600
    key, certificate = folder.load()
    assert certificate.public_key() == key.public_key()
    assert [path.name for path in folder.path.glob("pending*")] == []
    shown = (await fleet.enrolment.keys(fleet.admin))[0]
    assert (shown.fingerprint, shown.facts["name"]) == (fingerprint_of(key), "Press 4")


async def test_a_device_may_offload_to_the_cloud_with_what_enrolment_brought(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    membership = await enrol(tmp_path / "device", fleet.url, await fleet.code(cloud=True), ca_file=fleet.ca_file)
    loaded = with_enrolment(
        load_settings(overrides={"home": tmp_path / "device"}, environ={}, default_file=tmp_path / "none")
    )
    cloud = loaded.settings.cloud
    assert (cloud.url, cloud.key) == ("https://cloud.example:8500", None)
    assert cloud.key_file is not None
    assert cloud.key_file.stat().st_mode & 0o777 == 0o600
    token = read_secret(cloud.key_file, "cloud.key_file")
    assert token not in EnrolmentFolder(tmp_path / "device").file.read_text()
    with KeyStore(tmp_path / "fleet" / "cloud-keys.db") as keys:
        record = keys.verify(token)
        assert record is not None
        assert record.device == loaded.settings.mqtt.uid == membership.uid
        (key,) = await fleet.enrolment.keys(fleet.admin)
        await fleet.enrolment.revoke(fleet.admin, key.id)
        assert keys.verify(token) is None


async def test_the_device_service_starts_with_them(
    fleet: RunningFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    membership = await enrol(tmp_path / "device", fleet.url, await fleet.code(), ca_file=fleet.ca_file)
    started: list[LoadedSettings] = []

    def serve(loaded: LoadedSettings, _: object) -> int:
        started.append(loaded)
        return 0

    monkeypatch.setattr(service, "serve", serve)
    loaded = load_settings(overrides={"home": tmp_path / "device"}, environ={}, default_file=tmp_path / "none")
    assert app.serve(loaded) == 0
    assert started[0].settings.mqtt.uid == membership.uid


async def test_what_is_set_at_the_device_wins(fleet: RunningFleet, tmp_path: Path) -> None:
    home, file = tmp_path / "device", tmp_path / "edgewise.toml"
    await enrol(home, fleet.url, await fleet.code(), ca_file=fleet.ca_file)
    file.write_text(f'home = "{home}"\n[mqtt]\nhost = "10.0.0.5"\n')
    loaded = with_enrolment(load_settings(file, environ={"EDGEWISE_MQTT__PORT": "8885"}))
    assert (loaded.settings.mqtt.host, loaded.settings.mqtt.port) == ("10.0.0.5", 8885)
    assert loaded.origins["mqtt.host"] == str(file)


async def test_a_device_in_no_fleet_has_its_own_settings(tmp_path: Path) -> None:
    loaded = load_settings(overrides={"home": tmp_path}, environ={}, default_file=tmp_path / "none")
    assert with_enrolment(loaded) is loaded


async def test_the_private_key_never_leaves(fleet: RunningFleet, tmp_path: Path) -> None:
    """Nothing of the fleet's files holds it, and the fleet knows the public key only."""
    home = tmp_path / "device"
    await enrol(home, fleet.url, await fleet.code(), ca_file=fleet.ca_file)
    key, _ = EnrolmentFolder(home).load()
    secret = key.private_numbers().private_value
    forms = (secret.to_bytes(32, "big"), str(secret).encode(), f"{secret:x}".encode())
    for path in (tmp_path / "fleet").rglob("*"):
        if path.is_file():
            assert not any(form in path.read_bytes() for form in forms), path


async def test_enrolment_waits_for_an_admin_and_goes_on_after_a_break(fleet: RunningFleet, tmp_path: Path) -> None:
    home, code = tmp_path / "device", await fleet.code(auto_accept=False)
    for _ in range(2):  # broken off, and begun again with the same code
        with pytest.raises(StillWaiting):
            await enrol(home, fleet.url, code, ca_file=fleet.ca_file, wait=False)
    (key,) = await fleet.enrolment.keys(fleet.admin)
    await fleet.enrolment.decide(fleet.admin, key.id, True)
    membership = await enrol(home, fleet.url, code, ca_file=fleet.ca_file)
    assert membership.uid == key.uid


async def test_a_refused_device_may_try_another_code(fleet: RunningFleet, tmp_path: Path) -> None:
    home, code = tmp_path / "device", await fleet.code(auto_accept=False)
    with pytest.raises(StillWaiting):
        await enrol(home, fleet.url, code, ca_file=fleet.ca_file, wait=False)
    (key,) = await fleet.enrolment.keys(fleet.admin)
    await fleet.enrolment.decide(fleet.admin, key.id, False)
    with pytest.raises(NotAccepted):
        await enrol(home, fleet.url, code, ca_file=fleet.ca_file)
    assert (await enrol(home, fleet.url, await fleet.code(), ca_file=fleet.ca_file)).uid != key.uid


async def test_a_code_that_ended_while_waiting_is_not_the_end(fleet: RunningFleet, tmp_path: Path) -> None:
    home = tmp_path / "device"
    with pytest.raises(StillWaiting):
        await enrol(home, fleet.url, await fleet.code(auto_accept=False), ca_file=fleet.ca_file, wait=False)
    assert (await enrol(home, fleet.url, await fleet.code(), ca_file=fleet.ca_file)).uid


async def test_an_enrolled_device_is_asked_twice(fleet: RunningFleet, tmp_path: Path) -> None:
    home = tmp_path / "device"
    first = await enrol(home, fleet.url, await fleet.code(), ca_file=fleet.ca_file)
    with pytest.raises(InvalidRequest, match="--again"):
        await enrol(home, fleet.url, await fleet.code(), ca_file=fleet.ca_file)
    again = await enrol(home, fleet.url, await fleet.code(uid=first.uid), ca_file=fleet.ca_file, again=True)
    assert again.uid == first.uid


async def test_an_unknown_authority_gets_no_code(fleet: RunningFleet, tmp_path: Path) -> None:
    code = await fleet.code()
    with pytest.raises(LinkLost, match="certificate verify failed"):
        await enrol(tmp_path / "device", fleet.url, code)
    assert (await fleet.enrolment.codes(fleet.admin))[0].uses == 1


async def test_a_pin_stands_in_for_an_authority(fleet: RunningFleet, tmp_path: Path) -> None:
    with pytest.raises(LinkLost, match="pinned"):
        await enrol(tmp_path / "device", fleet.url, await fleet.code(), pin="sha256:" + "0" * 64)
    assert (await enrol(tmp_path / "device", fleet.url, await fleet.code(), pin=pin_of(fleet))).uid


@pytest.mark.parametrize(
    "url", ["fleet.example", "ftp://fleet.example", "http://fleet.example", "https://a:b@c", "https://h:x"]
)
def test_bad_addresses(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked_url(url)
    assert refused.value.param == "fleet"


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"state": "odd"}'])
async def test_something_else_at_the_address(answer: bytes, tmp_path: Path) -> None:
    other_app = FastAPI()

    @other_app.post("/fleet/v1/enrol")
    async def other() -> Response:
        return Response(answer)

    async with served(other_app) as url:
        with pytest.raises(LinkLost, match="no fleet service"):
            await enrol(tmp_path / "device", url, "AAAAA-AAAAA")


# --- renewal ---------------------------------------------------------------------------------------------------------------


async def enrolled(fleet: RunningFleet, home: Path, clock: FakeClock | None = None) -> Renewal:
    await enrol(home, fleet.url, await fleet.code(), ca_file=fleet.ca_file)
    return Renewal(home, lambda *_, **__: None, clock=clock)


def current(home: Path) -> x509.Certificate:
    return EnrolmentFolder(home).load()[1]


async def test_the_fleet_says_when(fleet: RunningFleet, tmp_path: Path) -> None:
    renewal = await enrolled(fleet, tmp_path / "device")
    before = current(tmp_path / "device")
    assert await renewal.once() == LONGEST_S
    fleet.clock.advance(59.5 * DAY)
    assert 0 < await renewal.once() < DAY
    assert current(tmp_path / "device") == before
    fleet.clock.advance(DAY)
    assert await renewal.once() == LONGEST_S
    after = current(tmp_path / "device")
    assert after.public_key() != before.public_key()
    assert after.subject == before.subject
    assert after.not_valid_after_utc.timestamp() == pytest.approx(fleet.clock.time() + 90 * DAY)


async def test_an_expired_certificate_is_renewed(fleet: RunningFleet, tmp_path: Path) -> None:
    renewal = await enrolled(fleet, tmp_path / "device")
    fleet.clock.advance(300 * DAY)
    assert await renewal.once() == LONGEST_S
    assert current(tmp_path / "device").not_valid_after_utc.timestamp() > fleet.clock.time()


async def test_a_power_cut_before_the_answer_is_kept(
    fleet: RunningFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fleet has given a certificate that the device does not have; it asks again with the key that it has."""
    home = tmp_path / "device"
    renewal = await enrolled(fleet, home)
    fleet.clock.advance(61 * DAY)
    with monkeypatch.context() as patch:
        patch.setattr(EnrolmentFolder, "keep", _power_cut)
        with pytest.raises(KeyboardInterrupt):
            await renewal.once()
    assert await Renewal(home, lambda *_, **__: None).once() == LONGEST_S
    key, certificate = EnrolmentFolder(home).load()
    assert certificate.public_key() == key.public_key()
    states = sorted(key.state for key in await fleet.enrolment.keys(fleet.admin))
    assert states == ["active", "active", "replaced"]


def _power_cut(*_: object) -> None:
    raise KeyboardInterrupt


async def test_a_revoked_device_is_told(fleet: RunningFleet, tmp_path: Path) -> None:
    renewal = await enrolled(fleet, tmp_path / "device")
    (key,) = await fleet.enrolment.keys(fleet.admin)
    await fleet.enrolment.revoke(fleet.admin, key.id)
    with pytest.raises(NotPermitted, match="revoked"):
        await renewal.once()


async def test_the_part_asks_again_for_ever(fleet: RunningFleet, tmp_path: Path) -> None:
    """With nobody there, then with the fleet back: on a clock of its own, so that a day is no time."""
    home, clock, told = tmp_path / "device", FakeClock(), []
    await enrolled(fleet, home)
    membership = EnrolmentFolder(home).file
    text = membership.read_text()
    membership.write_text(text.replace(fleet.url, "https://127.0.0.1:9"))
    renewal = Renewal(home, lambda kind, *_, **__: told.append(kind), clock=clock)
    renewal.start()
    try:
        for _ in range(3):
            await until(lambda: clock._sleepers, seconds=60)
            clock.advance(3600.0)
        membership.write_text(text)
        fleet.clock.advance(61 * DAY)
        while not told:
            await until(lambda: clock._sleepers or told, seconds=60)
            clock.advance(3600.0)
    finally:
        await renewal.stop()
    assert told == ["certificate_renewed"]


async def test_a_fault_of_ours_does_not_end_the_part(
    fleet: RunningFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home, clock, told = tmp_path / "device", FakeClock(), []
    await enrolled(fleet, home)
    fleet.clock.advance(61 * DAY)
    whole = EnrolmentFolder.read
    faults = [ValueError("a fault"), KeyError("another")]

    def read(folder: EnrolmentFolder) -> object:
        if faults:
            raise faults.pop(0)
        return whole(folder)

    monkeypatch.setattr(EnrolmentFolder, "read", read)
    renewal = Renewal(home, lambda kind, *_, **__: told.append(kind), clock=clock)
    renewal.start()
    try:
        while not told:
            await until(lambda: clock._sleepers or told, seconds=60)
            clock.advance(120.0)  # of the second pause the longest
    finally:
        await renewal.stop()
    assert told == ["certificate_renewed"]
    broke = [record for record in caplog.records if record.message == "certificate_renewal_broke"]
    assert [(bool(record.exc_info), record.edgewise_fields) for record in broke] == [  # type: ignore[attr-defined]
        (True, {"failures": 1}),
        (True, {"failures": 2}),
    ]


async def test_a_device_in_no_fleet_renews_nothing(tmp_path: Path) -> None:
    renewal = Renewal(tmp_path, lambda *_, **__: None)
    renewal.start()
    assert renewal._task is None
    assert await renewal.once() == LONGEST_S
    await renewal.stop()


def test_damage_is_named(tmp_path: Path) -> None:
    folder = EnrolmentFolder(tmp_path)
    folder.path.mkdir()
    for text in ("fleet = ", 'fleet = "x"\n'):
        folder.file.write_text(text)
        with pytest.raises(ConfigError, match="enrol this device again"):
            folder.read()
    with pytest.raises(ConfigError, match="enrol this device again"):
        folder.load()


async def test_the_time_is_learnt_from_the_fleet(fleet: RunningFleet) -> None:
    """Its Date header counts because its certificate was verified; with a pin nobody vouches for the dates."""
    pinned = TimeFloor(trusted=lambda: False)
    async with EnrolmentClient(fleet.url, pinned, pin=pin_of(fleet)) as client:
        with pytest.raises(NotPermitted):
            await client.challenge("0" * 64)
    assert pinned.value == EARLIEST_PLAUSIBLE.timestamp()
    floor = TimeFloor(trusted=lambda: False)
    async with EnrolmentClient(fleet.url, floor, ca_file=fleet.ca_file) as client:
        with pytest.raises(NotPermitted):
            await client.challenge("0" * 64)
    assert floor.value == pytest.approx(time.time(), abs=120)


def pin_of(fleet: RunningFleet) -> str:
    certificate = x509.load_pem_x509_certificate(fleet.pem.read_bytes())
    return f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"
