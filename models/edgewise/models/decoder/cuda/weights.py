"""A decoder's tensors as the CUDA kernels take them: matrices of floats, or rounded to 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from edgewise.kernels.rope import RopeTable
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.kernels.triton.decode_product import Weight
from edgewise.kernels.triton.weights import quantize as round_weight
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.parameters import DecoderParameters, LayerParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLayer:
    """One layer; norms [hidden] float32, `qk_norm` as in `LayerParameters`."""

    attention_norm: torch.Tensor
    qkv: Weight
    qk_norm: torch.Tensor | None
    output: Weight
    attention_post_norm: torch.Tensor | None
    ffn_norm: torch.Tensor
    gate_up: Weight
    down: Weight
    ffn_post_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardWeights:
    """All of a decoder.

    Attributes:
        embedding: [vocab, hidden], of floats always.
        norm: [hidden] float32, before the head.
        tables: Angles of each layer; None where it does not rotate.
    """

    config: DecoderConfig
    embedding: torch.Tensor
    layers: tuple[CardLayer, ...]
    norm: torch.Tensor
    head: Weight
    tables: tuple[RopeTable | None, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def embedding_scale(self) -> float:
        """As the weights' dtype has it."""
        return float(torch.tensor(self.config.embedding_scale, dtype=self.dtype).item())

    def matrices(self) -> list[Weight]:
        """One matrix of every shape."""
        found: dict[tuple[int, int], Weight] = {}
        for each in [w for layer in self.layers for w in (layer.qkv, layer.output, layer.gate_up, layer.down)]:
            found.setdefault((each.codes.shape[0], each.columns), each)
        found.setdefault((self.head.codes.shape[0], self.head.columns), self.head)
        return list(found.values())


def card_layer(layer: LayerParameters, quantize: Quantize, taken: Mapping[str, Weight] = {}) -> CardLayer:
    """A layer without experts; its tensors themselves where nothing is rounded.

    Args:
        taken: Matrices that are rounded already, by their names in `LayerParameters`; `layer` need not hold those.
    """

    def matrix(name: str) -> Weight:
        bias: torch.Tensor | None = getattr(layer, f"{name}_bias")
        own = taken.get(name)
        return card_matrix(getattr(layer, name), quantize, bias) if own is None else replace(own, bias=bias)

    return CardLayer(
        attention_norm=layer.attention_norm,
        qkv=matrix("qkv"),
        qk_norm=layer.qk_norm,
        output=matrix("output"),
        attention_post_norm=layer.attention_post_norm,
        ffn_norm=layer.ffn_norm,
        gate_up=matrix("gate_up"),
        down=matrix("down"),
        ffn_post_norm=layer.ffn_post_norm,
    )


def card_matrix(matrix: torch.Tensor, quantize: Quantize, bias: torch.Tensor | None = None) -> Weight:
    return Weight(matrix, bias=bias) if quantize == "none" else round_weight(matrix, quantize, bias)


def card_weights(
    config: DecoderConfig,
    parameters: DecoderParameters,
    ropes: Mapping[RopeParameters, RopeTable],
    quantize: Quantize = "none",
) -> CardWeights:
    """Of a decoder that is on the card already."""
    return CardWeights(
        config=config,
        embedding=parameters.embedding,
        layers=tuple(card_layer(layer, quantize) for layer in parameters.layers),
        norm=parameters.norm,
        head=card_matrix(parameters.head, quantize),
        tables=layer_tables(config, ropes),
    )


def layer_tables(config: DecoderConfig, ropes: Mapping[RopeParameters, RopeTable]) -> tuple[RopeTable | None, ...]:
    used = [config.rope_of(index) for index in range(config.num_layers)]
    return tuple(None if rope is None else ropes[rope] for rope in used)
