"""The agent in a real device service with real models: one process, asked one thing after the other."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.wire.fleet import Birth, ModelState, Reported, Telemetry
from scripts.service import DeviceService
from tests.e2e.broker import BrokerProcess
from tests.e2e.service import import_tiny, new_home, running
from tests.edge.agent.fleet import FleetDouble, until

UID = "dev-service"


def catalogue(home: Path, name: str) -> None:
    """An entry of the device's catalog whose files lie on this disk."""
    source = make_tiny_model(home / f"{name}-source", seed=3)
    rows = []
    for path in sorted(source.iterdir()):
        data = path.read_bytes()
        rows.append(
            f'[[model.files]]\nname = "{path.name}"\nsha256 = "{hashlib.sha256(data).hexdigest()}"\nsize = {len(data)}\n'
            f'sources = [{{ url = "file://{path}" }}]\n'
        )
    (home / "catalog.d").mkdir(exist_ok=True)
    info = '{ role = "llm", format = "safetensors", licence_model = "MIT", context = 512 }'
    head = f'[[model]]\nname = "{name}"\ninfo = {info}\n'
    (home / "catalog.d" / f"{name}.toml").write_text(head + "".join(rows))


@pytest.fixture(scope="module")
def service(one_broker: BrokerProcess) -> Iterator[DeviceService]:
    with ExitStack() as stack:
        home = stack.enter_context(new_home(starter=False))
        import_tiny(home)
        catalogue(home, "other")
        chosen = {
            "MQTT__HOST": one_broker.host,
            "MQTT__PORT": str(one_broker.port),
            "MQTT__UID": UID,
            "AGENT__TELEMETRY_S": "1",
            "ENGINE__THREADS": "1",
        }
        environment = {f"EDGEWISE_{name}": value for name, value in chosen.items()}
        yield stack.enter_context(running(model="tiny", home=home, environment=environment))


@pytest.fixture
async def fleet(one_broker: BrokerProcess, service: DeviceService, tmp_path: Path) -> AsyncIterator[FleetDouble]:
    async with FleetDouble(one_broker, UID, tmp_path) as double:
        yield double


async def done(fleet: FleetDouble, op: str, **args: Any) -> dict[str, Any]:
    end = await fleet.does(op, **args)
    assert end.state == "succeeded", end
    assert end.result is not None
    return end.result


async def test_it_answers_ping_and_infer(fleet: FleetDouble) -> None:
    assert (await done(fleet, "ping"))["uptime_s"] > 0
    id = await fleet.command("infer", prompt="hello", max_tokens=8, ignore_eos=True)
    end = await fleet.end(id)
    assert (end.state, end.code) == ("succeeded", "")
    assert end.result is not None
    pieces = fleet.pieces(id)
    assert "".join(pieces[offset] for offset in sorted(pieces)) == end.result["choices"][0]["text"]
    assert end.result["usage"]["completion_tokens"] == 8
    assert end.result["edgewise"]["stages"]
    assert [ack.state for ack in fleet.acks(id)] == ["accepted", "running", "succeeded"]


async def test_the_life_of_a_model(fleet: FleetDouble, service: DeviceService) -> None:
    id = await fleet.command("model.pull", name="other")
    end = await fleet.end(id)
    assert end.state == "succeeded", end
    assert end.result is not None
    (pulled,) = end.result["models"]
    assert pulled["name"] == "other"
    assert pulled["digest"] == Store(service.home / "models").manifest("other").digest
    assert await done(fleet, "model.load", name="other") == {"name": "other", "loaded": True}
    answer = await done(fleet, "infer", model="other", prompt="a", max_tokens=2)
    assert answer["model"] == "other"
    assert await done(fleet, "model.unload", name="other") == {"name": "other", "loaded": False}
    assert (await done(fleet, "model.remove", name="other"))["freed_bytes"] > 0
    gone = await fleet.does("infer", model="other", prompt="a")
    assert (gone.state, gone.code) == ("failed", "model_not_found")
    pinned = await fleet.does("model.remove", name="tiny")
    assert (pinned.state, "pinned" in pinned.reason) == ("failed", True)
    wrong = await fleet.does("model.pull", name="other", digest=f"sha256:{'0' * 64}")
    assert (wrong.state, wrong.code) == ("failed", "digest_mismatch")


def engine_of(service: DeviceService, name: str) -> int | None:
    shown = httpx.get(f"{service.url}/edgewise/v1/models", timeout=30).json()
    return next((one["pid"] for one in shown["models"] if one["name"] == name), None)


async def test_desired_models_are_brought_loaded_and_left_alone(fleet: FleetDouble, service: DeviceService) -> None:
    """F18: a document that says the same again, a connection that is made again: no engine is started for it."""

    async def reported(seen: int, state: str = "applied") -> Reported:
        def found() -> Reported | None:
            told = fleet.reported("models")
            return told if told is not None and (told.seen, told.state) == (seen, state) else None

        told: Reported = await until(found, f"models {seen} {state}: {fleet.reported('models')}")
        return told

    wanted = [{"name": "tiny"}, {"name": "other", "load": True}]
    await fleet.desire("models", 1, {"models": wanted})
    told = await reported(1)
    loaded = {one["name"]: ModelState.model_validate(one).loaded for one in told.document["models"]}
    assert loaded == {"tiny": True, "other": True}
    engines = {name: engine_of(service, name) for name in ("tiny", "other")}
    assert all(engines.values())
    await fleet.desire("models", 2, {"models": wanted})
    await reported(2)
    assert {name: engine_of(service, name) for name in ("tiny", "other")} == engines
    bad = [{"name": "other", "digest": f"sha256:{'0' * 64}"}]
    await fleet.desire("models", 3, {"models": bad, "remove_others": True})
    told = await reported(3, "refused")
    assert (told.applied, "Nothing was fetched" in told.reason) == (2, True)
    assert {name: engine_of(service, name) for name in ("tiny", "other")} == engines
    await fleet.desire("models", 4, {"models": [], "remove_others": True})
    told = await reported(4)
    assert [one["name"] for one in told.document["models"]] == ["tiny"]
    assert told.reason == "kept, because pinned: tiny"


async def test_what_is_changed_at_the_device_is_reported_too(fleet: FleetDouble, service: DeviceService) -> None:
    folder = service.home / "models" / "manifests"
    shutil.copy(folder / "tiny.json", service.home / "kept.json")
    Store(service.home / "models").import_path(service.home / "other-source", "by-hand")
    told = await until(
        lambda: (found := fleet.reported("models")) and "by-hand" in str(found.document) and found, "a report", 60
    )
    assert told.state == "applied"
    Store(service.home / "models").remove("by-hand")


async def test_telemetry_has_figures_of_what_happened(fleet: FleetDouble, service: DeviceService) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 30, "ignore_eos": True}
    answer = await asyncio.to_thread(httpx.post, f"{service.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200

    def values() -> dict[str, float]:
        samples = [sample for one in fleet.of("tel/device") for sample in one.read(Telemetry).samples]
        return {name: max(s.values.get(name, 0.0) for s in samples) for sample in samples for name in sample.values}

    await until(lambda: values().get("tokens_per_s", 0) > 0 and values().get("requests_ok", 0) > 0, "tokens", 30)
    seen = values()
    assert {
        "ttft_p50_ms",
        "ttft_p95_ms",
        "ttft_p99_ms",
        "itl_p95_ms",
        "itl_p99_ms",
        "queue",
        "running",
        "kv_used",
        "kv_fragmentation",
        "memory_used",
        "disk_free",
    } <= set(seen)
    assert 0 < seen["memory_used"] < seen["memory_total"]
    assert seen["requests_failed"] == 0


async def test_diagnose_says_what_doctor_finds(fleet: FleetDouble) -> None:
    result = await done(fleet, "diagnose")
    names = {check["name"] for check in result["checks"]}
    assert {"python", "configuration", "memory", "model"} <= names
    assert result["service"]["link"]["connected"] is True


async def test_the_birth_tells_what_the_broker_can_do_and_which_models_there_are(fleet: FleetDouble) -> None:
    def found() -> Birth | None:
        births = [one.read(Birth) for one in fleet.of("birth")]
        return next((birth for birth in births if birth.broker), None)

    birth = await until(found, "a birth after the probe", 60)
    assert birth.broker["shared"] is True
    assert "tiny" in {model.name for model in birth.models}
