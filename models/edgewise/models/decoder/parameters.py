"""The tensors of a decoder, fused as the products use them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgewise.models.decoder.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One layer; matrices are [out, in].

    Attributes:
        attention_norm, attention_post_norm, ffn_norm, ffn_post_norm: [hidden] float32; before and after each block.
        qkv: [(heads + 2 * kv_heads) * head_dim, hidden]: queries, keys, values.
        qk_norm: [heads + kv_heads, head_dim] float32, the norm weight of each query and key head; None without such norms.
        gate_up: [2 * ffn, hidden]; of a layer with experts [experts, 2 * ffn, hidden].
        down: [hidden, ffn] or [experts, hidden, ffn].
        router: [experts, hidden]; None in a layer without experts.
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    attention_post_norm: torch.Tensor | None
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    router: torch.Tensor | None
    ffn_post_norm: torch.Tensor | None

    def matrices(self) -> list[torch.Tensor]:
        """One matrix of every product of the layer."""
        if self.router is None:
            return [self.qkv, self.output, self.gate_up, self.down]
        return [self.qkv, self.output, self.router, self.gate_up[0], self.down[0]]


@dataclass(frozen=True, slots=True)
class DecoderParameters:
    """`embedding` and `head`: [vocab_rows, hidden], the same tensor when tied; `norm`: [hidden] float32."""

    embedding: torch.Tensor
    layers: tuple[LayerParameters, ...]
    norm: torch.Tensor
    head: torch.Tensor

    def matrices(self) -> list[torch.Tensor]:
        """One matrix of every shape that is multiplied with."""
        by_shape: dict[torch.Size, torch.Tensor] = {}
        for matrix in [*(matrix for layer in self.layers for matrix in layer.matrices()), self.head]:
            by_shape.setdefault(matrix.shape, matrix)
        return list(by_shape.values())


def allocate(
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    adds_output_biases: bool = True,
    matrices_on: torch.device | None = None,
) -> DecoderParameters:
    """Tensors of the right shapes with undefined contents.

    Args:
        adds_output_biases: False on all but one of several devices, since biases of summed products are added once.
        matrices_on: Where matrices lie, if elsewhere: "meta" takes no memory for them.
    """
    hidden, ffn = config.hidden_size, config.ffn_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device if len(shape) == 1 else matrices_on or device)

    def norm(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    def layer(index: int) -> LayerParameters:
        experts = config.experts_of(index)
        inner, several = (ffn, ()) if experts is None else (experts.ffn_size, (experts.count,))
        return LayerParameters(
            attention_norm=norm(hidden),
            qkv=empty(queries + 2 * keys, hidden),
            qkv_bias=empty(queries + 2 * keys) if config.qkv_bias else None,
            qk_norm=norm(config.num_heads + config.num_kv_heads, config.head_dim) if config.qk_norm else None,
            output=empty(hidden, queries),
            output_bias=empty(hidden) if config.output_bias and adds_output_biases else None,
            attention_post_norm=norm(hidden) if config.post_norms else None,
            ffn_norm=norm(hidden),
            gate_up=empty(*several, 2 * inner, hidden),
            gate_up_bias=empty(2 * ffn) if config.mlp_bias else None,
            down=empty(*several, hidden, inner),
            down_bias=empty(hidden) if config.mlp_bias and adds_output_biases else None,
            router=None if experts is None else empty(experts.count, hidden),
            ffn_post_norm=norm(hidden) if config.post_norms else None,
        )

    embedding = empty(config.vocab_rows, hidden)
    head = embedding if config.tied_embeddings else empty(config.vocab_rows, hidden)
    return DecoderParameters(embedding, tuple(layer(i) for i in range(config.num_layers)), norm(hidden), head)
