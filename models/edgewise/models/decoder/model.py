"""The decoder: one forward pass over a ragged batch of tokens, on a paged KV cache. Inference only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from edgewise.kernels.attention import AttentionPlan, Scratch, paged_attention, plan_attention
from edgewise.kernels.embedding import embedding
from edgewise.kernels.experts import mix_experts, route
from edgewise.kernels.gelu_mul import gelu_mul
from edgewise.kernels.kv_write import kv_rows, write_kv
from edgewise.kernels.linear import holds, linear, measure
from edgewise.kernels.low_rank import add_low_rank
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.kernels.rms_norm import rms_norm
from edgewise.kernels.rope import RopeRows, RopeTable, apply_rope, rope_rows
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.kernels.rows import Rows, default_rows
from edgewise.kernels.silu_mul import silu_mul
from edgewise.kernels.softcap import softcap
from edgewise.models.adapters.layout import Product
from edgewise.models.adapters.loading import AdaptedRows
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.experts import Experts
from edgewise.models.decoder.parallel import ALONE, Parallel
from edgewise.models.decoder.parameters import DecoderParameters, LayerParameters
from edgewise.models.multimodal.protocol import StepMedia

_ACTIVATIONS = {"silu": silu_mul, "gelu_tanh": gelu_mul}


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of one forward pass share. `ropes`: by parameters, `plans`: by window, `adapted`: rows with adapters."""

    tokens: int
    meta: AttentionMeta
    ropes: dict[RopeParameters, RopeRows]
    kv_rows: torch.Tensor
    plans: dict[int | None, AttentionPlan]
    adapted: Sequence[AdaptedRows]


class Decoder:
    """A loaded model.

    The residual stream, norms, rotation and attention are float32; products are in the weights' dtype. A token's result has
    the same bits whatever else is in the batch, however its prompt was cut into chunks, and after a prefix-cache hit
    once `prove_rows` has found how (`rows.proven`).

    Not for two threads at once: calls share scratch memory.
    """

    def __init__(
        self,
        config: DecoderConfig,
        parameters: DecoderParameters,
        ropes: Mapping[RopeParameters, RopeTable],
        parallel: Parallel = ALONE,
    ) -> None:
        """`config` and `parameters` are those of one device, where several compute the model together."""
        self.config = config
        self.parameters = parameters
        self.ropes = ropes
        self.rows = default_rows(self.dtype)
        self.parallel = parallel
        self._activation = _ACTIVATIONS[config.activation]
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self.dtype).item()
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
        self.rows = measure(self.parameters.matrices())
        return self.rows.proven

    def take_rows(self, rows: Rows) -> bool:
        """Compute as another device found best, in whose shapes sums are exchanged; whether that keeps a row's bits here too."""
        self.rows = rows
        return holds(self.parameters.matrices(), rows)

    @torch.inference_mode()
    def forward(
        self,
        tokens: torch.Tensor,
        kv: Sequence[KVLayer],
        meta: AttentionMeta,
        media: StepMedia | None = None,
        adapted: Sequence[AdaptedRows] = (),
    ) -> torch.Tensor:
        """Compute T tokens and write their keys and values.

        Args:
            tokens: [T] int64, each in [0, vocab); sequence after sequence as in `meta`.
            kv: One per layer; changed at `meta.slots`.
            meta: Layout of the batch. Positions are below `config.max_position`.
            media: Rows that stand in place of tokens' embeddings; they are not multiplied by `config.embedding_scale`.
            adapted: Tokens that are computed with adapters; each is in one of them at most.

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
        turned = meta.positions if meta.rope_positions is None else meta.rope_positions
        positions = torch.nn.functional.pad(turned, padding)
        step = _Step(
            tokens=count,
            meta=meta,
            ropes={rope: rope_rows(table, positions) for rope, table in self.ropes.items()},
            kv_rows=kv_rows(meta.slots, self.config.num_kv_heads),
            plans={window: self._plan(meta, window) for window in set(self.config.windows)},
            adapted=adapted,
        )
        x = self._embedding(torch.nn.functional.pad(tokens, padding))
        if self.config.embedding_scale != 1.0:
            x *= self._embedding_scale
        if media is not None:
            x[media.rows] = media.values.to(x.dtype)
        for index, (layer, pages) in enumerate(zip(self.parameters.layers, kv, strict=True)):
            x += self._after(self._attention(x, index, layer, pages, step), layer.attention_post_norm)
            x += self._after(self._feed_forward(x, index, layer, step), layer.ffn_post_norm)
        return rms_norm(x[:count], self.parameters.norm, self.config.rms_eps, self.dtype)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] of `forward` -> [R, vocab] float32, rounded to the weights' dtype on the way.

        Where several devices compute the model, the first one gets that, the others their own columns.
        """
        own = linear(hidden, self.parameters.head, None, self.rows)
        logits = self.parallel.columns(own)[:, : self.config.vocab_size].float()
        return logits if self.config.logit_softcap is None else softcap(logits, self.config.logit_softcap)

    def _embedding(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T] -> [T, hidden] float32. A token's row is on one device; the others add zeros, which leaves its bits."""
        table = self.parameters.embedding
        if self.parallel.size == 1:
            return embedding(tokens, table)
        local = tokens - self.parallel.rank * table.shape[0]
        elsewhere = (local < 0) | (local >= table.shape[0])
        own = embedding(local.masked_fill(elsewhere, 0), table)
        own.masked_fill_(elsewhere.unsqueeze(1), 0.0)
        return self.parallel.sum(own)

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
        self, x: torch.Tensor, index: int, layer: LayerParameters, pages: KVLayer, step: _Step
    ) -> torch.Tensor:
        config, window, rope = self.config, self.config.windows[index], self.config.rope_of(index)
        queries, turned = config.num_heads, config.num_heads + config.num_kv_heads
        normed = rms_norm(x, layer.attention_norm, config.rms_eps, self.dtype)
        heads = self._product("qkv", index, normed, layer.qkv, layer.qkv_bias, step)
        heads = heads.view(x.shape[0], -1, config.head_dim)
        qk = heads[:, :turned]
        if layer.qk_norm is not None:
            qk = rms_norm(qk, layer.qk_norm, config.rms_eps)
        if rope is not None:
            qk = apply_rope(qk, step.ropes[rope])
        new = slice(0, step.tokens)
        write_kv(pages, qk[new, queries:], heads[new, turned:], step.meta.slots, rows=step.kv_rows)
        mixed = paged_attention(
            qk[:, :queries],
            pages,
            step.meta,
            scale=config.attention_scale,
            window=window,
            softcap=config.attention_softcap,
            plan=step.plans[window],
        )
        mixed = mixed.flatten(1).to(self.dtype)
        return self.parallel.sum(self._product("output", index, mixed, layer.output, layer.output_bias, step))

    def _feed_forward(self, x: torch.Tensor, index: int, layer: LayerParameters, step: _Step) -> torch.Tensor:
        normed = rms_norm(x, layer.ffn_norm, self.config.rms_eps, self.dtype)
        experts = self.config.experts_of(index)
        if experts is not None and layer.router is not None:
            return self.parallel.sum(self._experts(normed, experts, layer.router, layer, step))
        active = self._activation(self._product("gate_up", index, normed, layer.gate_up, layer.gate_up_bias, step))
        return self.parallel.sum(self._product("down", index, active, layer.down, layer.down_bias, step))

    def _product(
        self,
        product: Product,
        index: int,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        step: _Step,
    ) -> torch.Tensor:
        """A layer's product with its weight, and what adapters add to their rows."""
        out = linear(x, weight, bias, self.rows)
        groups = [
            (one.rows, pair) for one in step.adapted if (pair := one.adapter.pairs.get((index, product))) is not None
        ]
        if groups:
            add_low_rank(out, x, groups)
        return out

    def _experts(
        self, normed: torch.Tensor, experts: Experts, router: torch.Tensor, layer: LayerParameters, step: _Step
    ) -> torch.Tensor:
        """Padding rows go to no expert and stay zero."""
        out = torch.zeros(normed.shape, dtype=torch.float32, device=normed.device)
        routes = route(
            linear(normed, router, None, self.rows)[: step.tokens], experts.per_token, normalised=experts.normalised
        )
        own = normed[: step.tokens]
        out[: step.tokens] = mix_experts(own, routes, layer.gate_up, layer.down, self._activation, self.rows)
        return out

    def _after(self, result: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        return result if norm is None else rms_norm(result, norm, self.config.rms_eps)
