"""What is said before there is a group: which models can be divided among how many devices, and what that takes of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edgewise.cli.doctor_checks import check_devices
from edgewise.core.errors import ConfigError, EngineFault, UnsupportedModel
from edgewise.core.settings import Settings, load_settings
from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.devices import group, place
from edgewise.engine.devices.shares import share_of
from edgewise.engine.fit import FitReport, fit
from edgewise.engine.machine import Machine
from edgewise.engine.numerics import resolve
from edgewise.kernels.limits import PAGE_TOKENS
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.longtail.estimate import read_network
from edgewise.models.store import Store
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.serving.served import read_model
from tests.models.multimodal.tiny_llava import tiny_llava

MACHINE = Machine(cuda=False, capability=None, available=8 << 30)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> DecoderConfig:
    return read_config(local_files(make_tiny_model(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """With a model of four heads, and one of six."""
    home = tmp_path_factory.mktemp("home")
    store = Store(home / "models", reserve_bytes=0)
    store.import_path(make_tiny_model(home / "four"), "four")
    store.import_path(make_tiny_model(home / "six", hidden=96, heads=6, kv_heads=3), "six")
    return store


def settings_of(store: Store, **asked: object) -> Settings:
    overrides = {"home": str(store.root.parent), "model": "four", **asked}
    return load_settings(overrides=overrides, environ={}).settings


def sized(network: DecoderConfig, devices: int, device: str = "cpu") -> FitReport:
    numerics = resolve(
        device=device, dtype="float32", kv_dtype="int8", quantize="auto", cuda=device == "cuda", devices=devices
    )
    return fit(
        network,
        numerics,
        available=8 << 30,
        memory_fraction=0.5,
        kv_memory_bytes=None,
        max_context=None,
        max_running=4,
        max_step_tokens=64,
        page_tokens=PAGE_TOKENS,
        devices=devices,
    )


def test_devices_of_a_cpu_share_its_memory_and_gpus_have_their_own(network: DecoderConfig) -> None:
    one, two, each = sized(network, 1), sized(network, 2), sized(network, 2, "cuda")
    assert one.weights < two.weights == 2 * each.weights < 1.2 * one.weights  # norms and rope tables are on both
    assert two.kv_per_token == one.kv_per_token == 2 * each.kv_per_token
    assert sized(network, 4).kv_per_token == 2 * one.kv_per_token  # two KV heads, each on two devices
    assert [line for line in two.explain() if line.startswith("devices")]
    assert not [line for line in one.explain() if line.startswith("devices")]


@pytest.mark.parametrize("kernels", ["native", "triton"])
def test_kernels_that_do_a_step_in_one_call_are_refused_by_name(network: DecoderConfig, kernels: str) -> None:
    with pytest.raises(ConfigError, match=f"'engine.kernels' is {kernels}, and 2 devices") as refused:
        resolve(
            device="cpu",
            dtype="auto",
            kv_dtype="auto",
            quantize="auto",
            cuda=False,
            kernels=kernels,
            network=network,
            devices=2,
        )
    assert refused.value.param == "engine.kernels"


def test_weights_in_few_bits_are_refused_by_name(network: DecoderConfig) -> None:
    with pytest.raises(ConfigError, match="'quantize' is int4, but the reference kernels"):
        resolve(device="cpu", dtype="auto", kv_dtype="auto", quantize="int4", cuda=False, network=network, devices=2)


def test_a_model_with_eyes_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be divided: models that read text alone can") as refused:
        share_of(read_network(tiny_llava(tmp_path / "llava")), 2)
    assert refused.value.param == "engine.tensor_parallel"


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"is 4, but torch finds 1 CUDA device here\. Set it to 1 at most"):
        place.require_devices("cuda", 4)
    place.require_devices("cpu", 4)


def test_the_setting(store: Store) -> None:
    assert settings_of(store).engine.devices == 1
    assert settings_of(store, **{"engine.tensor_parallel": "2"}).engine.devices == 2
    for bad in ("0", "many", "-1"):
        with pytest.raises(ConfigError, match="tensor_parallel"):
            settings_of(store, **{"engine.tensor_parallel": bad})


def test_it_holds_for_the_first_model_and_others_are_served_as_they_can(store: Store) -> None:
    four = settings_of(store, **{"engine.tensor_parallel": 4})
    assert read_model(four, store, "four", MACHINE).config.tensor_parallel == 4
    assert read_model(four, store, "six", MACHINE).config.tensor_parallel == 1
    three = settings_of(store, **{"engine.tensor_parallel": 3})
    with pytest.raises(ConfigError, match="4 query heads cannot be divided among 3 devices; 1, 2 or 4 can"):
        read_model(three, store, "four", MACHINE)
    assert read_model(three, store, "six", MACHINE).config.tensor_parallel == 3


def test_what_doctor_says(store: Store) -> None:
    none: dict[str, Any] = {"cuda": {"devices": []}}
    two = {"cuda": {"devices": [{"name": "one"}, {"name": "two"}]}}
    asked = settings_of(store, **{"engine.tensor_parallel": 2})
    assert check_devices(asked, none).status == "warn"
    assert check_devices(asked, two).status == "ok"
    more = check_devices(settings_of(store, **{"engine.tensor_parallel": 4}), two)
    assert (more.status, "2 GPU(s) are there" in more.detail) == ("fail", True)
    odd = check_devices(settings_of(store, **{"engine.tensor_parallel": 3}), none)
    assert (odd.status, "1, 2 or 4" in odd.detail) == ("fail", True)


def test_what_keeps_a_device_from_loading_is_the_engines_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader finds its own share well; no process is left."""
    folder = make_tiny_model(tmp_path / "tiny")
    files = local_files(folder)
    config = EngineConfig(
        model=files, device="cpu", dtype="float32", kv_memory_bytes=2**21, threads=1, tensor_parallel=2
    )
    started: list[Any] = []

    def spoilt(rank: int) -> Any:
        started.append(spawn(rank))
        (folder / "config.json").write_text("{}")
        return started[-1]

    spawn = group._spawn
    monkeypatch.setattr(group, "_spawn", spoilt)
    with pytest.raises(UnsupportedModel, match=r"Device 1 of 2: config\.json: 'model_type' is None"):
        build(config, lambda phase, done: None)
    assert [member.popen.poll() for member in started] == [70]


def test_a_process_that_cannot_be_started_is_the_engines_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(rank: int) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(group, "_spawn", full)
    files = local_files(make_tiny_model(tmp_path / "tiny"))
    config = EngineConfig(model=files, device="cpu", kv_memory_bytes=2**21, threads=1, tensor_parallel=2)
    with pytest.raises(EngineFault, match=r"No process could be started for device 1 of 2: .*temporarily"):
        build(config, lambda phase, done: None)
