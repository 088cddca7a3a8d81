"""Which kernels "auto" takes on a GPU, and that others are refused with the reason."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from edgewise.core.errors import ConfigError
from edgewise.engine import weight_choice as module
from edgewise.engine.numerics import numeric_class, resolve
from edgewise.engine.weight_choice import WeightChoice, choose_weights
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.decoder.experts import Experts
from edgewise.models.files import ModelFiles

EXPERTS = Experts(count=4, per_token=2, ffn_size=64, normalised=True, layers=(True, True))


@pytest.fixture
def network(tiny_model: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> DecoderConfig:
    """A model on a machine where Triton is installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find("json" if name == "triton" else name))
    return read_config(tiny_model)


def choose(network: DecoderConfig, **changes: str) -> WeightChoice:
    asked: dict[str, Any] = {"kernels": "auto", "quantize": "auto", "dtype": "auto", "device": "cuda", **changes}
    return choose_weights(network=network, **asked)


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (12, 0), None])
def test_fp8_is_for_cards_that_compute_with_it(network: DecoderConfig, capability: tuple[int, int] | None) -> None:
    asked = {"kernels": "auto", "dtype": "auto", "device": "cuda"}
    assert choose_weights(quantize="fp8", network=network, capability=capability, **asked).quantize == "fp8"
    assert choose_weights(quantize="auto", network=network, capability=capability, **asked).quantize == "none"
    numerics = resolve(
        device="cuda", dtype="auto", kv_dtype="fp8", quantize="fp8", cuda=True, capability=capability, network=network
    )
    assert "/w-bfloat16-fp8/" in numeric_class(numerics, torch_version="2", device_family="sm_90", threads=4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cuda", "capability": (8, 7)}, "compute capability 8.7, and instructions for fp8 .* come with 8.9"),
        ({"device": "cpu"}, "computes on 'cpu', where no kernels multiply fp8"),
        ({"device": "cuda", "kernels": "reference"}, "the reference kernels compute with unquantized weights"),
        ({"device": "cuda", "dtype": "float32"}, "'dtype' is float32, and the kernels multiply bfloat16"),
    ],
)
def test_fp8_is_refused_by_name_elsewhere(network: DecoderConfig, changes: dict[str, Any], reason: str) -> None:
    asked = {"kernels": "auto", "quantize": "fp8", "dtype": "auto", **changes}
    with pytest.raises(ConfigError, match=f"'quantize' is fp8, but .*{reason}") as caught:
        choose_weights(network=network, **asked)
    assert caught.value.param == "quantize"


def test_a_gpu_takes_tritons_kernels(network: DecoderConfig) -> None:
    chosen = choose(network)
    assert (chosen.kernels, chosen.quantize, chosen.dtype, chosen.lacking) == ("triton", "none", "bfloat16", "")
    assert choose(network, quantize="int4").quantize == "int4"
    assert chosen.why[0] == "kernels triton: the fastest on CUDA"
    assert choose(network, kernels="triton").kernels == "triton"
    assert choose(network, kernels="reference").kernels == "reference"
    mixture = replace(network, experts=EXPERTS, ffn_size=24)  # which no layer has
    assert choose(mixture, kernels="triton", quantize="int4").kernels == "triton"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"experts": replace(EXPERTS, count=513)}, "513 experts"),
        ({"experts": EXPERTS, "mlp_bias": True}, "experts have biases"),
        ({"experts": replace(EXPERTS, ffn_size=24)}, "no multiples of 16"),
        ({"ffn_size": 24}, "no multiples of 16"),
    ],
)
def test_what_the_kernels_lack_is_left_to_the_reference_by_name(
    network: DecoderConfig, changes: dict[str, object], reason: str
) -> None:
    lacking = replace(network, **changes)  # type: ignore[arg-type]
    chosen = choose(lacking)
    assert chosen.kernels == "reference"
    assert reason in chosen.lacking
    with pytest.raises(ConfigError, match=reason):
        choose(lacking, kernels="triton")


def test_kernels_of_another_device_are_refused(network: DecoderConfig) -> None:
    with pytest.raises(ConfigError, match="native, but those kernels do not compute on 'cuda'"):
        choose(network, kernels="native")
    with pytest.raises(ConfigError, match="triton, but those kernels do not compute on 'cpu'"):
        choose(network, kernels="triton", device="cpu")
    assert "float32" in choose(network, dtype="float32").lacking


def test_without_triton_the_reference_serves(tiny_model: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose(read_config(tiny_model)).lacking == "Triton is not installed"


def test_the_numeric_class_names_the_kernels(network: DecoderConfig) -> None:
    names = set()
    for kernels in ("triton", "reference"):
        numerics = resolve(
            device="cuda", dtype="auto", kv_dtype="int8", quantize="auto", cuda=True, kernels=kernels, network=network
        )
        names.add(numeric_class(numerics, torch_version="2.11.0", device_family="sm_90", threads=4))
    assert len(names) == 2


@pytest.mark.parametrize(
    ("stored", "failed", "chosen"),
    [
        ("Q4_1", (), "int4"),
        ("Q4_1", ("int8",), "int4"),
        ("Q4_1", ("int4",), "int8"),
        ("Q4_1", ("int4", "int8"), "none"),
        ("Q8_0", ("int8",), "none"),
        ("F16", ("int8", "int4"), "none"),
    ],
)
def test_what_failed_its_gate_is_passed_over(
    network: DecoderConfig, monkeypatch: pytest.MonkeyPatch, stored: str, failed: tuple[str, ...], chosen: str
) -> None:
    monkeypatch.setattr(module, "why_no_library", lambda: None)
    network = replace(network, encodings={"blk.0.attn_q.weight": stored, "token_embd.weight": stored})
    asked: dict[str, Any] = {"kernels": "auto", "quantize": "auto", "dtype": "auto", "device": "cpu"}
    found = choose_weights(network=network, failed=failed, **asked)
    assert found.quantize == chosen
    assert any("did not pass its gate" in why for why in found.why) == (stored != "F16" and chosen not in ("int4",))
    by_name = choose_weights(network=network, failed=failed, **{**asked, "quantize": "int4"})
    assert by_name.quantize == "int4"
