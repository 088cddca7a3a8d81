"""The CUDA decoder's passes under Triton's interpreter: what they compute is what the reference computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.kernels.interpreter import interpreted_decoder

interpreted_decoder()

from edgewise.engine.kv_cache import allocate  # noqa: E402 - Triton must be told to interpret before it is imported
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta  # noqa: E402
from edgewise.kernels.rows import Rows  # noqa: E402
from edgewise.kernels.triton.decode_product import Weight  # noqa: E402
from edgewise.kernels.triton.weights import quantize  # noqa: E402
from edgewise.models.decoder.config import DecoderConfig  # noqa: E402
from edgewise.models.decoder.cuda import products  # noqa: E402
from edgewise.models.decoder.cuda.fused import FusedStep  # noqa: E402
from edgewise.models.decoder.cuda.plain import PlainStep  # noqa: E402
from edgewise.models.decoder.cuda.prompts import PromptPass  # noqa: E402
from edgewise.models.decoder.cuda.support import why_not  # noqa: E402
from edgewise.models.decoder.cuda.weights import card_weights  # noqa: E402
from edgewise.models.decoder.model import Decoder  # noqa: E402
from tests.bench.gpu_shapes import SHAPES, random_decoder  # noqa: E402

CPU = torch.device("cpu")
PAGES = 12

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
        "vocab_size": 320,
        "max_position_embeddings": 256,
    }
    return random_decoder(DecoderConfig.from_hf({**SHAPES["llama-1b"], **small}), CPU)


def steps(decoder: Decoder) -> tuple[FusedStep, PlainStep]:
    caches = [
        allocate(decoder.config, num_pages=PAGES, kv_dtype="bfloat16", dtype="bfloat16", device=CPU) for _ in range(2)
    ]
    weights = card_weights(decoder.config, decoder.parameters, decoder.ropes)
    return FusedStep(weights, caches[0]), PlainStep(decoder, caches[1])


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@torch.inference_mode()
def test_a_step_computes_what_the_reference_does(decoder: Decoder) -> None:
    fused, plain = steps(decoder)
    table = torch.arange(PAGES, dtype=torch.int32).view(3, 4)
    for position in range(3):
        tokens = torch.tensor([position, 100 + position, 5])
        positions = torch.tensor([position, position, -1])
        found, expected = (
            step.logits(tokens, positions, step.slots(positions, table), table, together=False)[:2]
            for step in (fused, plain)
        )
        assert error(found, expected) < 0.03, position


@torch.inference_mode()
def test_blocks_whose_results_are_normed(decoder: Decoder) -> None:
    """As of Gemma: norms behind attention and feed-forward, bounded scores and logits, a window."""
    generator = torch.Generator().manual_seed(5)

    def norm() -> torch.Tensor:
        return torch.rand(decoder.config.hidden_size, generator=generator) + 0.5

    config = replace(
        decoder.config,
        post_norms=True,
        activation="gelu_tanh",
        attention_softcap=5.0,
        logit_softcap=3.0,
        embedding_scale=8.0,
        windows=(2, None),
    )
    layers = tuple(
        replace(layer, attention_post_norm=norm(), ffn_post_norm=norm()) for layer in decoder.parameters.layers
    )
    gemma = Decoder(config, replace(decoder.parameters, layers=layers), decoder.ropes)
    assert why_not(config, "bfloat16") is None
    fused, plain = steps(gemma)
    table = torch.arange(PAGES, dtype=torch.int32).view(3, 4)
    for position in range(3):
        tokens, positions = torch.tensor([position, 100, 5]), torch.tensor([position, position, -1])
        found, expected = (
            step.logits(tokens, positions, step.slots(positions, table), table, together=False)[:2]
            for step in (fused, plain)
        )
        assert error(found, expected) < 0.03, position


@torch.inference_mode()
def test_successive_tokens_together_have_the_bits_of_one_after_the_other(decoder: Decoder) -> None:
    """Both write the same keys and values, too."""
    (one, _), (many, _) = steps(decoder), steps(decoder)
    table = torch.arange(4, dtype=torch.int32).expand(5, -1).contiguous()
    tokens, positions = torch.arange(5) * 3, torch.arange(5)
    together = many.logits(tokens, positions, many.slots(positions, table), table, together=True)
    for at in range(5):
        place = positions[at : at + 1]
        alone = one.logits(tokens[at : at + 1], place, one.slots(place, table[:1]), table[:1], together=False)
        assert torch.equal(alone[0], together[at]), at
    for own, other in zip(one._kv, many._kv, strict=True):
        assert torch.equal(own.k, other.k)
        assert torch.equal(own.v, other.v)


@torch.inference_mode()
def test_prompts_are_computed_as_the_reference_does(decoder: Decoder) -> None:
    lens, tables = (1, 17, 20), torch.tensor([[0, 0], [1, 2], [3, 4]], dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lens])
    owners = torch.repeat_interleave(torch.arange(3), torch.tensor(lens))
    slots = tables[owners, positions // PAGE_TOKENS].long() * PAGE_TOKENS + positions % PAGE_TOKENS
    meta = AttentionMeta(lens, lens, positions, slots, tables)
    tokens = torch.arange(sum(lens)) * 5
    prompts = PromptPass(card_weights(decoder.config, decoder.parameters, decoder.ropes), decoder.rows)
    caches = [
        allocate(decoder.config, num_pages=6, kv_dtype="bfloat16", dtype="bfloat16", device=CPU) for _ in range(2)
    ]
    found, expected = prompts.hidden(tokens, caches[0], meta), decoder.forward(tokens, caches[1], meta)
    assert error(found, expected) < 0.03
    assert error(prompts.logits(found), decoder.logits(expected)) < 0.03


def test_every_shape_that_prompts_multiply_with_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded matrices are unpacked a slice at a time, and the last slice has fewer rows."""
    monkeypatch.setattr(products, "_SLICE", 64 * 40)
    measured: list[torch.Tensor] = []

    def measure(floats: list[torch.Tensor]) -> Rows:
        measured.extend(floats)
        return Rows(8)

    monkeypatch.setattr(products, "measure", measure)
    whole = torch.randn(96, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    even, odd = quantize(whole[:80], "int4"), quantize(whole, "int8")
    products.measure_products([Weight(whole), even, odd])
    assert [tuple(it.shape) for it in measured] == [(96, 64), (40, 64), (40, 64), (16, 64)]
    multiplied: list[int] = []

    def linear(x: torch.Tensor, floats: torch.Tensor, *_: object) -> torch.Tensor:
        multiplied.append(len(floats))
        return floats.T

    monkeypatch.setattr(products, "linear", linear)
    products.long_product(torch.zeros(64, 64), odd, Rows(8))
    assert multiplied == [40, 40, 16]
