"""The decoder: one forward pass over a ragged batch of tokens, on a paged KV cache. Inference only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from edgewise.kernels.attention import AttentionPlan, Scratch, paged_attention, plan_attention
from edgewise.kernels.embedding import embedding
from edgewise.kernels.kv_write import kv_rows, write_kv
from edgewise.kernels.linear import linear, measure
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.kernels.rms_norm import rms_norm
from edgewise.kernels.rope import RopeRows, RopeTable, apply_rope, rope_rows
from edgewise.kernels.rows import default_rows
from edgewise.kernels.silu_mul import silu_mul
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.parameters import DecoderParameters, LayerParameters


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of one forward pass share. `plans`: by window."""

    tokens: int
    meta: AttentionMeta
    rope: RopeRows
    kv_rows: torch.Tensor
    plans: dict[int | None, AttentionPlan]


class Decoder:
    """A loaded model.

    The residual stream, norms, rotation and attention are float32; products are in the weights' dtype. A token's result has
    the same bits whatever else is in the batch, however its prompt was cut into chunks, and after a prefix-cache hit
    once `prove_rows` has found how (`rows.proven`).

    Not for two threads at once: calls share scratch memory.
    """

    def __init__(self, config: DecoderConfig, parameters: DecoderParameters, rope: RopeTable) -> None:
        self.config = config
        self.parameters = parameters
        self.rows = default_rows(self.dtype)
        self._rope = rope
        self._scratch = Scratch()

    def __repr__(self) -> str:
        return f"Decoder({self.config.architecture}, {self.config.num_layers} layers, {self.dtype}, {self.device})"

    @property
    def dtype(self) -> torch.dtype:
        return self.parameters.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.parameters.embedding.device

    def prove_rows(self) -> bool:
        """Find the cheapest way of computing products here that keeps a row's bits whatever the batch; False if none does."""
        layer = self.parameters.layers[0]
        self.rows = measure([layer.qkv, layer.output, layer.gate_up, layer.down, self.parameters.head])
        return self.rows.proven

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta) -> torch.Tensor:
        """Compute T tokens and write their keys and values.

        Args:
            tokens: [T] int64, each in [0, vocab); sequence after sequence as in `meta`.
            kv: One per layer; changed at `meta.slots`.
            meta: Layout of the batch. Positions are below `config.max_position`.

        Returns:
            [T, hidden], the weights' dtype: hidden states after the final norm.

        Raises:
            ValueError: `tokens`, `kv` and `meta` do not agree.
        """
        count = sum(meta.query_lens)
        if tokens.shape != (count,) or meta.positions.shape != (count,) or len(kv) != self.config.num_layers:
            raise ValueError(
                f"{count} tokens and {self.config.num_layers} layers expected, got tokens {tuple(tokens.shape)}, "
                f"positions {tuple(meta.positions.shape)} and {len(kv)} layers"
            )
        padding = (0, self.rows.padded(count) - count)
        positions = torch.nn.functional.pad(meta.positions, padding)
        step = _Step(
            tokens=count,
            meta=meta,
            rope=rope_rows(self._rope, positions),
            kv_rows=kv_rows(meta.slots, self.config.num_kv_heads),
            plans={window: self._plan(meta, window) for window in set(self.config.windows)},
        )
        x = embedding(torch.nn.functional.pad(tokens, padding), self.parameters.embedding)
        for layer, pages, window in zip(self.parameters.layers, kv, self.config.windows, strict=True):
            x += self._attention(x, layer, pages, window, step)
            x += self._feed_forward(x, layer)
        return rms_norm(x[:count], self.parameters.norm, self.config.rms_eps, self.dtype)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] of `forward` -> [R, vocab] float32, rounded to the weights' dtype on the way."""
        return linear(hidden, self.parameters.head, None, self.rows).float()

    def _plan(self, meta: AttentionMeta, window: int | None) -> AttentionPlan:
        return plan_attention(
            meta,
            heads=self.config.num_heads,
            kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            window=window,
            scratch=self._scratch,
        )

    def _attention(
        self, x: torch.Tensor, layer: LayerParameters, pages: KVLayer, window: int | None, step: _Step
    ) -> torch.Tensor:
        config = self.config
        queries, turned = config.num_heads, config.num_heads + config.num_kv_heads
        normed = rms_norm(x, layer.attention_norm, config.rms_eps, self.dtype)
        heads = linear(normed, layer.qkv, layer.qkv_bias, self.rows).view(x.shape[0], -1, config.head_dim)
        qk = heads[:, :turned]
        if layer.qk_norm is not None:
            qk = rms_norm(qk, layer.qk_norm, config.rms_eps)
        qk = apply_rope(qk, step.rope)
        new = slice(0, step.tokens)
        write_kv(pages, qk[new, queries:], heads[new, turned:], step.meta.slots, rows=step.kv_rows)
        mixed = paged_attention(
            qk[:, :queries],
            pages,
            step.meta,
            scale=config.head_dim**-0.5,
            window=window,
            plan=step.plans[window],
        )
        return linear(mixed.flatten(1).to(self.dtype), layer.output, layer.output_bias, self.rows)

    def _feed_forward(self, x: torch.Tensor, layer: LayerParameters) -> torch.Tensor:
        normed = rms_norm(x, layer.ffn_norm, self.config.rms_eps, self.dtype)
        active = silu_mul(linear(normed, layer.gate_up, layer.gate_up_bias, self.rows))
        return linear(active, layer.down, layer.down_bias, self.rows)
