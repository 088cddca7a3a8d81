"""A layer of an encoder that looks at everything at once, as Whisper and ViT have it; names are those of Whisper's files."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class TransformerLayer(nn.Module):
    """Attention of all tokens to all, then two products with GELU between; each normed before and added after.

    Args:
        width, heads, inner, eps: Sizes, and epsilon of the norms.
        key_bias: Whether keys have a bias.
    """

    def __init__(self, width: int, heads: int, inner: int, eps: float, *, key_bias: bool = True) -> None:
        super().__init__()
        self.self_attn = _Attention(width, heads, key_bias)
        self.self_attn_layer_norm = nn.LayerNorm(width, eps)
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)
        self.final_layer_norm = nn.LayerNorm(width, eps)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[n, tokens, width] in and out."""
        states = states + self.self_attn(self.self_attn_layer_norm(states))
        inner: torch.Tensor = self.fc2(functional.gelu(self.fc1(self.final_layer_norm(states))))
        return states + inner


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, key_bias: bool) -> None:
        super().__init__()
        self._heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=key_bias)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            one(states).unflatten(2, (self._heads, -1)).transpose(1, 2)
            for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.out_proj(mixed)
        return out
