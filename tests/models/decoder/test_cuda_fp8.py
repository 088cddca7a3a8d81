"""A decoder in fp8 as CUDA computes it, under Triton's interpreter: what the gate measures; checkpoints in fp8 as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch

from tests.kernels.interpreter import interpreted_decoder

interpreted_decoder()

from edgewise.core.errors import BadModelFile  # noqa: E402 - Triton must be told to interpret before it is imported
from edgewise.engine.kv_cache import allocate  # noqa: E402
from edgewise.kernels.fp8_linear import OWN_TILES, round_rows  # noqa: E402
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta  # noqa: E402
from edgewise.models.decoder.config import DecoderConfig, read_config  # noqa: E402
from edgewise.models.decoder.cuda import loading  # noqa: E402
from edgewise.models.decoder.cuda.fused import FusedStep  # noqa: E402
from edgewise.models.decoder.cuda.network import CudaDecoder  # noqa: E402
from edgewise.models.decoder.cuda.plain import PlainStep  # noqa: E402
from edgewise.models.decoder.cuda.prompts import PromptPass  # noqa: E402
from edgewise.models.decoder.cuda.step import DecodeStep  # noqa: E402
from edgewise.models.decoder.cuda.support import card_weight_bytes  # noqa: E402
from edgewise.models.decoder.cuda.weights import CardWeights, card_weights  # noqa: E402
from edgewise.models.decoder.layout import Target  # noqa: E402
from edgewise.models.decoder.loading import load_decoder, read_rows  # noqa: E402
from edgewise.models.decoder.model import Decoder  # noqa: E402
from edgewise.models.decoder.rounded import RoundedDecoder  # noqa: E402
from edgewise.models.files import ModelFiles  # noqa: E402
from edgewise.models.tiny import local_files, make_tiny_model  # noqa: E402
from tests.bench.gpu_check import in_float32  # noqa: E402
from tests.bench.gpu_shapes import SHAPES, random_decoder  # noqa: E402
from tests.models.weights.checkpoints import config_of, save  # noqa: E402

CPU = torch.device("cpu")
PAGES = 12
# Of what rounding costs: where two ways differ by a rounding to bfloat16, every tenth code or so falls to the other side.
NEAR = 0.8
MATRICES = ("qkv", "output", "gate_up", "down")
FILES = ModelFiles(name="random", digest="sha256:" + "0" * 64, format="safetensors", paths={})

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about NaN in padding


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    small = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 128,
        "max_position_embeddings": 256,
    }
    return random_decoder(DecoderConfig.from_hf({**SHAPES["llama-1b"], **small}), CPU)


@pytest.fixture(scope="module")
def card(decoder: Decoder) -> CardWeights:
    return card_weights(decoder.config, decoder.parameters, decoder.ropes, "fp8")


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def pages(config: DecoderConfig, dtype: str = "bfloat16") -> list[Any]:
    return allocate(config, num_pages=PAGES, kv_dtype=dtype, dtype=dtype, device=CPU)


def judged(decoder: Decoder) -> Decoder:
    """By the gate's arithmetic."""
    return cast("Decoder", RoundedDecoder(in_float32(decoder), FILES, "fp8"))


@torch.inference_mode()
def test_steps_compute_what_the_gate_measures(decoder: Decoder, card: CardWeights) -> None:
    exact = in_float32(decoder)
    forms: list[DecodeStep] = [
        FusedStep(card, pages(card.config)),
        PlainStep(judged(decoder), pages(card.config, "float32")),
        PlainStep(exact, pages(card.config, "float32")),
    ]
    table = torch.arange(PAGES, dtype=torch.int32).view(3, 4)
    for position in range(2):
        tokens = torch.tensor([position, 100 + position, 5])
        positions = torch.tensor([position, position, -1])
        found, expected, true = (
            step.logits(tokens, positions, step.slots(positions, table), table, together=False)[:2] for step in forms
        )
        cost = error(expected, true)
        assert 0.01 < cost < 0.15
        assert error(found, expected) < NEAR * cost, position
        assert error(found, true) < 1.3 * cost


@torch.inference_mode()
def test_prompts_compute_what_the_gate_measures(decoder: Decoder, card: CardWeights) -> None:
    lens, tables = (1, 4, 20), torch.tensor([[0, 0], [1, 2], [3, 4]], dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lens])
    owners = torch.repeat_interleave(torch.arange(3), torch.tensor(lens))
    slots = tables[owners, positions // PAGE_TOKENS].long() * PAGE_TOKENS + positions % PAGE_TOKENS
    meta = AttentionMeta(lens, lens, positions, slots, tables)
    tokens = torch.arange(sum(lens)) * 5
    prompts, gate, exact = PromptPass(card, OWN_TILES), judged(decoder), in_float32(decoder)
    found = prompts.logits(prompts.hidden(tokens, pages(card.config), meta))
    expected, true = (
        network.logits(network.forward(tokens, pages(card.config, "float32"), meta)) for network in (gate, exact)
    )
    cost = error(expected, true)
    assert error(found, expected) < NEAR * cost
    assert error(found, true) < 1.3 * cost


@torch.inference_mode()
def test_a_row_has_the_bits_that_it_has_alone(card: CardWeights) -> None:
    together, alone = (FusedStep(card, pages(card.config)) for _ in range(2))
    table = torch.arange(3, dtype=torch.int32).view(3, 1)
    tokens, positions = torch.arange(3) * 11, torch.zeros(3, dtype=torch.int64)
    whole = together.logits(tokens, positions, together.slots(positions, table), table, together=False)
    for row in range(3):
        own = slice(row, row + 1)
        slots = alone.slots(positions[own], table[own])
        found = alone.logits(tokens[own], positions[own], slots, table[own], together=False)
        assert torch.equal(found[0], whole[row]), row


def test_bytes_are_counted_to_the_last(decoder: Decoder, card: CardWeights) -> None:
    tensors = [card.embedding, card.norm]
    for weight in (card.head, *(getattr(layer, name) for layer in card.layers for name in MATRICES)):
        tensors += [weight.codes, weight.scale]
    for layer in card.layers:
        tensors += [layer.attention_norm, layer.ffn_norm]
    tables = {id(table): table for table in card.tables if table is not None}
    tensors += [part for table in tables.values() for part in (table.cos, table.sin)]
    assert card_weight_bytes(card.config, "fp8") == sum(tensor.nbytes for tensor in tensors)


# --- files ---


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is read as floats."""
    names: list[str] = []

    def stream(wanted: Sequence[Target], reader: Any, device: torch.device) -> Iterator[int]:
        for target in wanted:
            names.append(target.name)
            staged = torch.empty(target.out.shape, dtype=torch.float32)
            read_rows(target, staged, 0, reader)
            target.out.copy_(staged)
            yield target.out.nbytes

    monkeypatch.setattr(loading, "stream_targets", stream)
    return names


@torch.inference_mode()
def test_a_file_from_prompt_to_answer(tiny_model: ModelFiles, read: list[str]) -> None:
    """Read, rounded, a prompt in one pass, a token behind it; the gate's decoder beside it, and the exact one."""
    config = read_config(tiny_model)
    weights = loading.load_on_card(tiny_model, config, CPU, "fp8", lambda done: None)
    assert weights.head.codes.dtype == torch.float8_e4m3fn
    card, kv = CudaDecoder(weights), pages(config)
    step = FusedStep(weights, kv)
    exact = load_decoder(tiny_model, device=CPU, dtype=torch.float32)
    gate = RoundedDecoder(load_decoder(tiny_model, device=CPU, dtype=torch.float32), tiny_model, "fp8")
    others: list[tuple[Any, list[Any]]] = [(gate, pages(config, "float32")), (exact, pages(config, "float32"))]
    table = torch.arange(2, dtype=torch.int32)[None]
    prompt, token = torch.arange(17) * 7, torch.tensor([5])

    def meta(first: int, count: int) -> AttentionMeta:
        positions = torch.arange(first, first + count)
        return AttentionMeta((count,), (first + count,), positions, positions, table)

    def both(network: Any, own: list[Any]) -> torch.Tensor:
        """[18, vocab]: the prompt's, and the token's."""
        parts = ((prompt, meta(0, 17)), (token, meta(17, 1)))
        return torch.cat([network.logits(network.forward(tokens, own, of)) for tokens, of in parts])

    place = torch.tensor([17])
    found = card.logits(card.forward(prompt, kv, meta(0, 17)))
    found = torch.cat((found, step.logits(token, place, place, table, together=False)))
    judged, true = (both(network, own) for network, own in others)
    cost = error(judged, true)
    assert 0 < cost < 0.25
    assert error(found, judged) < cost
    assert error(found, true) < 1.3 * cost
    assert any("q_proj" in name for name in read)


def stored(folder: Path, block: tuple[int, int] | None, quantization: dict[str, Any], part: str) -> ModelFiles:
    """A tiny model whose projections are in fp8, `block` outputs and inputs to a scale; None: all."""
    (folder / "plain").mkdir()
    plain = local_files(make_tiny_model(folder / "plain", format="safetensors"))
    tensors: dict[str, torch.Tensor] = {}
    for key, tensor in safetensors.torch.load_file(plain.paths["model.safetensors"]).items():
        if "_proj" not in key:
            tensors[key] = tensor
            continue
        size = tuple(tensor.shape) if block is None else (block[0], min(block[1], tensor.shape[1]))
        grid = torch.nn.functional.max_pool2d(tensor.float().abs()[None], size, size, ceil_mode=True)[0] / 448
        spread = grid.repeat_interleave(size[0], 0).repeat_interleave(size[1], 1)
        tensors[key] = (tensor.float() / spread[: tensor.shape[0], : tensor.shape[1]]).to(torch.float8_e4m3fn)
        tensors[key.removesuffix("weight") + part] = grid.reshape(()) if block is None else grid
        tensors[key.removesuffix("weight") + "input_scale"] = torch.ones(1)
    config = json.loads(plain.paths["config.json"].read_text())
    return save(folder, tensors, quantization, **config)


WIDE = 1 << 20
CHECKPOINTS: dict[str, tuple[tuple[int, int] | None, dict[str, Any], str]] = {
    "channel": ((1, WIDE), config_of("float-quantized", type="float", strategy="channel"), "weight_scale"),
    "tensor": (None, config_of("float-quantized", type="float", strategy="tensor"), "weight_scale"),
    "fp8": (None, {"quant_method": "fp8", "activation_scheme": "static"}, "weight_scale"),
    "fbgemm": ((1, WIDE), {"quant_method": "fbgemm_fp8"}, "weight_scale"),
    "blocks": ((32, 32), {"quant_method": "fp8", "weight_block_size": [32, 32]}, "weight_scale_inv"),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints_in_fp8(kind: str, tmp_path: Path, read: list[str]) -> None:
    """One scale for a row or a matrix: the file's numbers. Others are rounded once more."""
    files = stored(tmp_path, *CHECKPOINTS[kind])
    done: list[float] = []
    found = loading.load_on_card(files, read_config(files), CPU, "fp8", done.append)
    exact = load_decoder(files, device=CPU, dtype=torch.float32).parameters
    for layer, own in zip(exact.layers, found.layers, strict=True):
        for each in MATRICES:
            wanted, weight = getattr(layer, each), getattr(own, each)
            values = weight.codes.float() * weight.scale[:, None]
            if kind == "blocks":
                codes, scale = round_rows(wanted.bfloat16())
                assert torch.equal(weight.codes.float(), codes.float())
                assert torch.equal(weight.scale, scale)
            else:
                torch.testing.assert_close(values, wanted, rtol=1e-6, atol=0)
    assert any("q_proj" in name for name in read) == (kind == "blocks")
    assert done[-1] == 1.0


def test_a_stored_nan_is_named(tmp_path: Path, read: list[str]) -> None:
    files = stored(tmp_path, *CHECKPOINTS["channel"])
    path = files.paths["model.safetensors"]
    tensors = safetensors.torch.load_file(path)
    bad = next(key for key in tensors if key.endswith("down_proj.weight"))
    tensors[bad].view(torch.uint8)[3, 5] = 0xFF
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(BadModelFile, match=r"down_proj\.weight"):
        loading.load_on_card(files, read_config(files), CPU, "fp8", lambda done: None)


def test_weights_that_are_not_finite_are_refused(decoder: Decoder) -> None:
    layer = decoder.parameters.layers[1]
    spoilt = layer.down.clone()
    spoilt[2, 3] = torch.nan
    layers = (decoder.parameters.layers[0], replace(layer, down=spoilt))
    bad = Decoder(decoder.config, replace(decoder.parameters, layers=layers), decoder.ropes)
    with pytest.raises(BadModelFile, match="'down' of layer 1 holds NaN or infinity in row 2"):
        RoundedDecoder(in_float32(bad), FILES, "fp8")
