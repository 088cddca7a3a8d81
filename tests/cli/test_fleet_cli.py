"""`edgewise fleet ...` and `edgewise device ...` against a real fleet service in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgewise.cli.exit_codes import ExitCode
from edgewise.cli.main import main
from edgewise.core.settings import load_settings
from edgewise.security.tls import check_tls
from edgewise.wire.fleet import Command
from scripts.service import free_port
from tests.fakes.fleet_device import FleetDevice

PASSWORD = "correct-horse"
_START_S = 120.0


@dataclass
class Service:
    url: str
    home: Path
    broker_port: int


@dataclass
class Cli:
    """Runs commands in this process, as one user."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        out, self.err = self.capsys.readouterr()
        assert ended.value.code == code, self.err
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """With one admin, who was added before the first start."""
    home = tmp_path_factory.mktemp("fleet")
    (home / "password").write_text(PASSWORD)
    port, broker_port = free_port(), free_port()
    environment = {**os.environ, "EDGEWISE_HOME": str(home / "state"), "EDGEWISE_MQTT__PORT": str(broker_port)}
    command = [sys.executable, "-m", "edgewise.cli.main", "fleet"]
    added = [*command, "users", "add", "ada", "--role", "admin", "--local", "--password-file", str(home / "password")]
    subprocess.run(added, env=environment, check=True, timeout=_START_S)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([*command, "serve", "--port", str(port)], env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _START_S
        while not _ready(url):
            assert process.poll() is None, (home / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield Service(url, home, broker_port)
    finally:
        process.terminate()
        process.wait(60)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def cli(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Of somebody who has logged in, on a device that is in no fleet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "device"))
    run = Cli(capsys)
    run("fleet", "login", "--url", service.url, "--name", "ada", "--password-file", str(service.home / "password"))
    return run


def enrolled(cli: Cli, service: Service, *options: str) -> str:
    code = cli.json("fleet", "codes", "new", "--accept", *options)["code"]
    return str(
        cli.json("device", "enroll", "--fleet", service.url, "--code", code, "--name", "Press 4", "--again")["uid"]
    )


def test_a_login_is_kept_for_its_user_only(cli: Cli, service: Service, tmp_path: Path) -> None:
    assert cli.json("fleet", "whoami")["name"] == "ada"
    kept = tmp_path / "config" / "edgewise" / "fleet.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    token = json.loads(kept.read_text())["token"]
    assert PASSWORD not in kept.read_text()
    cli("fleet", "logout")
    assert not kept.exists()
    cli("fleet", "whoami", "--url", service.url, code=ExitCode.FAILURE)
    assert "edgewise fleet login" in cli.err
    cli("fleet", "whoami", "--url", service.url, "--token", token, code=ExitCode.FAILURE)


def test_a_device_from_code_to_revocation(cli: Cli, service: Service) -> None:
    made = cli.json("fleet", "codes", "new", "--label", "site=lyon")
    assert made["command"] == f"edgewise device enroll --fleet {service.url} --code {made['code']}"
    enroll = ("device", "enroll", "--fleet", service.url, "--code", made["code"], "--name", "Press 4")
    cli("device", "status", code=ExitCode.NOT_FOUND)
    cli(*enroll, "--no-wait", code=ExitCode.UNAVAILABLE)
    told = cli.err
    (key,) = cli.json("fleet", "keys", "list", "--state", "pending")
    assert f"its key {key['fingerprint'][:16]}" in told
    cli("fleet", "keys", "accept", key["id"])
    uid = cli.json(*enroll)["uid"]
    status = cli.json("device", "status")
    assert (status["uid"], status["fleet"], status["fingerprint"]) == (uid, service.url, key["fingerprint"])
    assert status["broker"].startswith("mqtt://127.0.0.1:")
    shown = cli.json("config", "show")["settings"]["mqtt.uid"]
    assert (shown["value"], Path(shown["origin"]).name) == (uid, "enrolment.toml")
    page = cli.json("fleet", "devices", "site:lyon")
    assert uid in [device["uid"] for device in page["items"]]
    shown = cli.json("fleet", "device", uid)
    assert (shown["name"], shown["labels"], shown["state"]) == ("Press 4", {"site": "lyon"}, "never-seen")
    assert [one["state"] for one in shown["keys"]] == ["active"]
    cli("fleet", "keys", "revoke", key["id"])
    assert cli.json("fleet", "keys", "list", "--device", uid)[0]["state"] == "revoked"
    cli("fleet", "keys", "revoke", key["id"], code=ExitCode.USAGE)


def test_devices_are_edited_and_retired(cli: Cli, service: Service) -> None:
    uid = enrolled(cli, service, "--label", "site=lyon", "--label", "line=2")
    edited = cli.json("fleet", "edit", uid, "--name", "Press 5", "--label", "line=3", "--unlabel", "site")
    assert (edited["name"], edited["labels"]) == ("Press 5", {"line": "3"})
    assert uid in cli("fleet", "devices")
    assert "line=3" in cli("fleet", "device", uid)
    cli("fleet", "retire", uid, "--yes")
    cli("fleet", "device", uid, code=ExitCode.NOT_FOUND)


def test_desired_state_and_commands(cli: Cli, service: Service, tmp_path: Path) -> None:
    uid = enrolled(cli, service)
    document = tmp_path / "config.json"
    document.write_text('{"placement.policy": "prefer-local"}')
    assert cli.json("fleet", "desire", uid, "config", str(document))["gen"] == 1
    assert cli.json("fleet", "shadow", uid, "config")["desired"] == {"placement.policy": "prefer-local"}
    (sent,) = cli.json("fleet", "send", "ping", "--to", uid, "--arg", "n=1", "--arg", "text=hello", "--ttl", "1h")
    assert (sent["op"], sent["args"]) == ("ping", {"n": 1, "text": "hello"})
    assert sent["id"] in [command["id"] for command in cli.json("fleet", "commands", "--device", uid)["items"]]
    assert cli.json("fleet", "cancel", sent["id"])["state"] in ("cancelled", "sent", "queued")
    assert "ping" in cli("fleet", "command", sent["id"])
    cli("fleet", "send", "ping", code=ExitCode.USAGE)
    cli("fleet", "send", "ping", "--query", "site:nowhere", code=ExitCode.NOT_FOUND)
    cli("fleet", "desire", uid, "config", str(tmp_path / "none"), code=ExitCode.USAGE)


def test_commands_to_a_device_that_is_there(cli: Cli, service: Service, tmp_path: Path) -> None:
    """Its answers are streamed, waited for and turned into exit codes."""
    uid = enrolled(cli, service)
    with device_there(uid, service.broker_port, tmp_path):
        deadline = time.monotonic() + 60
        while cli.json("fleet", "device", uid)["state"] != "online":
            assert time.monotonic() < deadline
        (done,) = cli.json("fleet", "send", "ping", "--to", uid, "--wait")
        assert (done["state"], done["result"]) == ("succeeded", {"op": "ping"})
        assert cli("fleet", "send", "infer", "--to", uid, "--arg", "prompt=Hi", "--wait").startswith("Hello\n")
        failed = cli("fleet", "send", "drain", "--to", uid, "--wait", code=ExitCode.FAILURE)
        assert "out of breath" in failed
        assert cli("fleet", "logs", uid, "--lines", "2") == "one\ntwo\n"
        document = tmp_path / "config.json"
        document.write_text('{"log.level": "debug"}')
        cli("fleet", "desire", uid, "config", str(document))
        while "applied 1" not in cli("fleet", "device", uid):
            assert time.monotonic() < deadline


@contextmanager
def device_there(uid: str, port: int, folder: Path) -> Iterator[None]:
    """A scripted device in a thread with an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> FleetDevice:
        device = FleetDevice(uid, port, folder, acts={"infer": _says_hello, "drain": _fails, "logs": _two_lines})
        return await device.start()

    device = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(device.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _says_hello(device: FleetDevice, id: str, command: Command) -> None:
    await device.ack(id, "accepted")
    for offset, text in enumerate(("Hel", "lo")):
        await device.piece(id, offset, text)
    await device.ack(id, "succeeded", result={"choices": [{"text": "Hello"}]})


async def _fails(device: FleetDevice, id: str, command: Command) -> None:
    await device.ack(id, "accepted")
    await device.ack(id, "failed", code="engine_error", reason="out of breath")


async def _two_lines(device: FleetDevice, id: str, command: Command) -> None:
    await device.ack(id, "accepted")
    await device.log_part(id, 0, ("one", "two"), last=True)
    await device.ack(id, "succeeded", result={"lines": command.args["lines"], "parts": 1})


def test_groups_events_rollouts_alerts(cli: Cli, service: Service, tmp_path: Path) -> None:
    uid = enrolled(cli, service, "--label", "site=nice")
    assert cli.json("fleet", "groups", "save", "south", "site:nice")["count"] == 1
    (group,) = (group for group in cli.json("fleet", "groups", "list") if group["name"] == "south")
    cli("fleet", "groups", "delete", group["id"])
    kinds = [event["kind"] for event in cli.json("fleet", "events", "--device", uid)["items"]]
    assert "key.accepted" in kinds
    document = tmp_path / "config.json"
    document.write_text('{"placement.policy": "prefer-local"}')
    made = cli.json("fleet", "rollouts", "create", "spring", "config", str(document), "--query", "site:nice")
    assert made["state"] == "draft"
    assert "spring" in cli("fleet", "rollouts", "list")
    assert cli.json("fleet", "rollouts", "act", made["id"], "cancel")["state"] == "cancelled"
    assert cli.json("fleet", "rollouts", "show", made["id"])["name"] == "spring"
    cli("fleet", "rollouts", "act", made["id"], "explode", code=ExitCode.USAGE)
    assert cli.json("fleet", "alerts")["items"] == []
    rule = cli.json("fleet", "rules", "list")[0]
    cli("fleet", "rules", "silence", rule["id"], "2h")
    assert cli.json("fleet", "rules", "list")[0]["silenced_until"] > time.time()


def test_people_tokens_and_audit(cli: Cli, service: Service) -> None:
    secret = str(service.home / "password")
    cli("fleet", "users", "add", "vera", "--password-file", secret)
    assert "vera" in cli("fleet", "users", "list")
    assert cli.json("fleet", "users", "change", "vera", "--role", "operator", "--disable")["disabled_at"] is not None
    cli("fleet", "users", "change", "ada", "--role", "viewer", code=ExitCode.USAGE)
    assert "last admin" in cli.err
    made = cli.json("fleet", "tokens", "new", "ci", "--expires-in", "90d")
    assert cli.json("fleet", "whoami", "--token", made["token"])["role"] == "viewer"
    cli("fleet", "users", "list", "--token", made["token"], code=ExitCode.FAILURE)
    cli("fleet", "tokens", "revoke", made["id"])
    cli("fleet", "whoami", "--token", made["token"], code=ExitCode.FAILURE)
    assert "user.change" in cli("fleet", "audit", "--target", "vera")
    cli("fleet", "audit", "verify")
    lines = [json.loads(line) for line in cli("fleet", "audit", "export").splitlines()]
    assert {"user.add", "token.add"} <= {line["action"] for line in lines}
    assert PASSWORD not in str(lines)


def test_what_cannot_be_reached_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run = Cli(capsys)
    run("fleet", "devices", "--url", "http://127.0.0.1:9", code=ExitCode.UNAVAILABLE)
    assert "no fleet service answers at http://127.0.0.1:9" in run.err
    (tmp_path / "edgewise").mkdir()
    (tmp_path / "edgewise" / "fleet.json").write_text("{")
    run("fleet", "devices", code=ExitCode.CONFIG)


def test_broker_configuration_is_written_for_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    run = Cli(capsys)
    written = run.json("fleet", "broker-config", "--host", "broker.example", "--out", str(tmp_path / "broker"))
    assert Path(written["conf"]).read_text().count("listener ") == 2
    assert written["settings"]["fleet.broker_url"] == "mqtts://broker.example:8883"
    loaded = load_settings(overrides=written["settings"]).settings
    assert loaded.mqtt.password_file == tmp_path / "broker" / "fleet.password"
    made = run.json("fleet", "certificate", "--host", "fleet.example", "--out", str(tmp_path / "tls"))
    assert check_tls(Path(made["tls.cert"]), Path(made["tls.key"])) is not None
