"""Prompts on CUDA: whole chunks at once, products by the library, the rest by kernels of `kernels.triton`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.embedding import embedding
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.kernels.rows import Rows
from edgewise.kernels.softcap import softcap
from edgewise.kernels.triton.long_rows import activate, add_rms_norm
from edgewise.kernels.triton.prefill_attention import prefill_attention, rope_append
from edgewise.models.decoder.cuda.experts import prompt_experts
from edgewise.models.decoder.cuda.products import long_product
from edgewise.models.decoder.cuda.weights import CardWeights
from edgewise.models.decoder.cuda.whole_prompts import all_whole, attend_whole


class PromptPass:
    """The forward pass of a decoder over chunks of prompts.

    Attributes:
        rows: How many rows products are computed with, so that a token's bits do not depend on its chunk (`kernels.rows`).
    """

    def __init__(self, weights: CardWeights, rows: Rows) -> None:
        self.rows = rows
        self._config = weights.config
        self._weights = weights
        self._scale = weights.embedding_scale

    def hidden(self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta) -> torch.Tensor:
        """As `Decoder.forward`; of prompts without media."""
        config, eps, dtype = self._config, self._config.rms_eps, self._weights.dtype
        count = sum(meta.query_lens)
        padding = (0, self.rows.padded(count) - count)
        positions = torch.nn.functional.pad(meta.positions, padding)
        slots = torch.nn.functional.pad(meta.slots, padding, value=-1)
        seen = _Seen(meta, tokens.device)
        x = embedding(torch.nn.functional.pad(tokens, padding), self._weights.embedding)
        if config.embedding_scale != 1.0:
            x *= self._scale
        delta: torch.Tensor | None = None
        post: torch.Tensor | None = None
        for index, (layer, pages) in enumerate(zip(self._weights.layers, kv, strict=True)):
            angles = self._weights.tables[index]
            normed = add_rms_norm(x, delta, layer.attention_norm, eps, dtype, post)
            qkv = long_product(normed, layer.qkv, self.rows)
            q = torch.empty((x.shape[0], config.num_heads, config.head_dim), dtype=dtype, device=x.device)
            rope_append(
                qkv,
                pages,
                positions,
                slots,
                None if angles is None else angles.cos,
                None if angles is None else angles.sin,
                q,
                heads=config.num_heads,
                qk_norm=layer.qk_norm,
                eps=eps,
            )
            mixed = torch.empty_like(q)
            mixed[count:] = 0
            self._attend(index, q[:count], pages, meta, seen, mixed[:count])
            delta = long_product(mixed.flatten(1), layer.output, self.rows)
            normed = add_rms_norm(x, delta, layer.ffn_norm, eps, dtype, layer.attention_post_norm)
            if layer.mixture is None:
                active = activate(long_product(normed, layer.gate_up, self.rows), config.activation)
                delta = long_product(active, layer.down, self.rows)
            else:
                delta = prompt_experts(normed, layer, layer.mixture, config, slots, self.rows)
            post = layer.ffn_post_norm
        return add_rms_norm(x, delta, self._weights.norm, eps, dtype, post)[:count]

    def _attend(
        self, index: int, q: torch.Tensor, pages: KVLayer, meta: AttentionMeta, seen: _Seen, out: torch.Tensor
    ) -> None:
        config, window = self._config, self._config.windows[index]
        if seen.whole and window is None and config.attention_softcap is None and not self.rows.proven:
            attend_whole(q, pages, meta, out, config.attention_scale)
            return
        prefill_attention(
            q,
            pages,
            seen.starts,
            seen.contexts,
            meta.block_tables,
            out,
            scale=config.attention_scale,
            window=window,
            softcap=config.attention_softcap,
            max_query=seen.max_query,
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `Decoder.logits`."""
        logits = long_product(hidden, self._weights.head, self.rows).float()
        return logits if self._config.logit_softcap is None else softcap(logits, self._config.logit_softcap)


class _Seen:
    """Which tokens the queries of a step see, as the kernel takes it."""

    def __init__(self, meta: AttentionMeta, device: torch.device) -> None:
        ends = torch.tensor((0, *meta.query_lens)).cumsum(0)
        self.starts = ends.to(device, torch.int32)
        self.contexts = torch.tensor(meta.context_lens, dtype=torch.int32).to(device)
        self.max_query = max(meta.query_lens)
        self.whole = all_whole(meta)
