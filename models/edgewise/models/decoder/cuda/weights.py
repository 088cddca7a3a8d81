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
from edgewise.models.decoder.experts import Experts
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.parameters import DecoderParameters, LayerParameters


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """What a layer's experts have besides their matrices.

    Attributes:
        router: [experts, hidden], of floats always: rounding would change where tokens go.
    """

    experts: Experts
    router: Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLayer:
    """One layer; norms [hidden] float32, `qk_norm` as in `LayerParameters`.

    Attributes:
        gate_up, down: With `mixture` those of all experts, one below the other: [experts * 2 * n, hidden], [experts * hidden, n].
        mixture: None in a layer without experts.
    """

    attention_norm: torch.Tensor
    qkv: Weight
    qk_norm: torch.Tensor | None
    output: Weight
    attention_post_norm: torch.Tensor | None
    ffn_norm: torch.Tensor
    gate_up: Weight
    down: Weight
    ffn_post_norm: torch.Tensor | None
    mixture: ExpertWeights | None = None

    def matrices(self) -> list[Weight]:
        """Those that a library multiplies with in prompts, which experts' are not."""
        if self.mixture is not None:
            return [self.qkv, self.output, self.mixture.router]
        return [self.qkv, self.output, self.gate_up, self.down]


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
        """One matrix of every shape that prompts are multiplied with by a library."""
        found: dict[tuple[int, int], Weight] = {}
        for each in [matrix for layer in self.layers for matrix in layer.matrices()]:
            found.setdefault((each.codes.shape[0], each.columns), each)
        found.setdefault((self.head.codes.shape[0], self.head.columns), self.head)
        return list(found.values())


def card_layer(
    layer: LayerParameters, experts: Experts | None, quantize: Quantize, taken: Mapping[str, Weight] = {}
) -> CardLayer:
    """A layer; its tensors themselves where nothing is rounded.

    Args:
        experts: Of the layer; None where one block serves all tokens.
        taken: Matrices that are rounded already, by their names in `LayerParameters`; `layer` need not hold those.
    """

    def matrix(name: str) -> Weight:
        bias: torch.Tensor | None = getattr(layer, f"{name}_bias")
        own = taken.get(name)
        if own is not None:
            return replace(own, bias=bias)
        return card_matrix(getattr(layer, name).flatten(0, -2), quantize, bias)

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
        mixture=None if experts is None or layer.router is None else ExpertWeights(experts, Weight(layer.router)),
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
        layers=tuple(
            card_layer(layer, config.experts_of(index), quantize) for index, layer in enumerate(parameters.layers)
        ),
        norm=parameters.norm,
        head=card_matrix(parameters.head, quantize),
        tables=layer_tables(config, ropes),
    )


def layer_tables(config: DecoderConfig, ropes: Mapping[RopeParameters, RopeTable]) -> tuple[RopeTable | None, ...]:
    used = [config.rope_of(index) for index in range(config.num_layers)]
    return tuple(None if rope is None else ropes[rope] for rope in used)
