"""The check of a card's decoders, under Triton's interpreter: rounded weights pass beside their own numbers, a fault does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kernels.interpreter import interpreted_decoder

interpreted_decoder()

from edgewise.models.decoder.config import DecoderConfig  # noqa: E402 - Triton must be told to interpret before
from edgewise.models.decoder.cuda.weights import CardWeights, card_weights  # noqa: E402
from edgewise.models.decoder.model import Decoder  # noqa: E402
from tests.bench.gpu_check import WEIGHT_LIMIT, as_rounded, compare, in_float32  # noqa: E402
from tests.bench.gpu_shapes import SHAPES, random_decoder  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about NaN in padding

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}
LENGTHS = (1, 17)


def both(shape: str, quantize: Any) -> tuple[CardWeights, Decoder]:
    """Rounded weights, and the decoder in float32 that has their numbers."""
    given = {**SHAPES[shape], **SMALL, **({"num_local_experts": 3} if shape == "mixtral-12b" else {})}
    decoder = random_decoder(DecoderConfig.from_hf(given), torch.device("cpu"))
    weights = card_weights(decoder.config, decoder.parameters, decoder.ropes, quantize)
    return weights, as_rounded(in_float32(decoder), weights)


def with_a_wrong_scale(weights: CardWeights) -> CardWeights:
    """Of half the columns of the last product."""
    (layer,) = weights.layers
    assert layer.down.scale is not None
    scale = layer.down.scale.clone()
    scale[:, 1] *= 2
    return replace(weights, layers=(replace(layer, down=replace(layer.down, scale=scale)),))


@pytest.mark.parametrize(("shape", "quantize"), [("mixtral-12b", "int4"), ("llama-1b", "int4"), ("llama-1b", "fp8")])
def test_rounded_weights_pass(shape: str, quantize: Any) -> None:
    weights, reference = both(shape, quantize)
    compare(weights, reference, lengths=LENGTHS).judge(WEIGHT_LIMIT[quantize], "small")


def test_a_fault_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    weights, reference = both("llama-1b", "int8")
    compare(weights, reference, lengths=LENGTHS).judge(WEIGHT_LIMIT["int8"], "small")
    wrong = compare(with_a_wrong_scale(weights), reference, lengths=LENGTHS)
    with pytest.raises(AssertionError, match="small"):
        wrong.judge(WEIGHT_LIMIT["int8"], "small")
    assert capsys.readouterr().out.count("error of prompts") == 2
