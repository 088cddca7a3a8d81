"""The tensors of a decoder, fused as the products use them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgewise.models.decoder.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One layer; matrices are [out, in].

    Attributes:
        qkv: [(heads + 2 * kv_heads) * head_dim, hidden]: queries, keys, values.
        gate_up: [2 * ffn, hidden].
        qk_norm: [heads + kv_heads, head_dim] float32, the norm weight of each query and key head; None without such norms.
        attention_norm, ffn_norm: [hidden] float32.
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderParameters:
    """`embedding` and `head`: [vocab, hidden], the same tensor when tied; `norm`: [hidden] float32."""

    embedding: torch.Tensor
    layers: tuple[LayerParameters, ...]
    norm: torch.Tensor
    head: torch.Tensor


def allocate(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> DecoderParameters:
    """Tensors of the right shapes with undefined contents."""
    hidden, ffn = config.hidden_size, config.ffn_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def norm(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    def layer() -> LayerParameters:
        return LayerParameters(
            attention_norm=norm(hidden),
            qkv=empty(queries + 2 * keys, hidden),
            qkv_bias=empty(queries + 2 * keys) if config.qkv_bias else None,
            qk_norm=norm(config.num_heads + config.num_kv_heads, config.head_dim) if config.qk_norm else None,
            output=empty(hidden, queries),
            output_bias=empty(hidden) if config.output_bias else None,
            ffn_norm=norm(hidden),
            gate_up=empty(2 * ffn, hidden),
            gate_up_bias=empty(2 * ffn) if config.mlp_bias else None,
            down=empty(hidden, ffn),
            down_bias=empty(hidden) if config.mlp_bias else None,
        )

    embedding = empty(config.vocab_size, hidden)
    head = embedding if config.tied_embeddings else empty(config.vocab_size, hidden)
    return DecoderParameters(embedding, tuple(layer() for _ in range(config.num_layers)), norm(hidden), head)
