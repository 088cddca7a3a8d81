"""Prompts on CUDA: whole chunks at once, products by the library, the rest by kernels of `kernels.triton`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from edgewise.kernels.embedding import embedding
from edgewise.kernels.linear import linear
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.kernels.rope import RopeTable
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.kernels.rows import Rows
from edgewise.kernels.softcap import softcap
from edgewise.kernels.triton.long_rows import activate, add_rms_norm
from edgewise.kernels.triton.prefill_attention import prefill_attention, rope_append
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.parallel import Parallel
from edgewise.models.decoder.parameters import DecoderParameters


class PromptPass:
    """The forward pass of a decoder without experts over chunks of prompts.

    Attributes:
        rows: How many rows products are computed with, so that a token's bits do not depend on its chunk (`kernels.rows`).
    """

    def __init__(
        self,
        config: DecoderConfig,
        parameters: DecoderParameters,
        ropes: Mapping[RopeParameters, RopeTable],
        parallel: Parallel,
        rows: Rows,
    ) -> None:
        self.rows = rows
        self._config = config
        self._parameters = parameters
        self._parallel = parallel
        self._tables = [ropes[rope] if (rope := config.rope_of(i)) else None for i in range(config.num_layers)]
        self._scale = torch.tensor(config.embedding_scale, dtype=parameters.embedding.dtype).item()

    def hidden(self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta) -> torch.Tensor:
        """As `Decoder.forward`; of prompts without media."""
        config, eps, dtype = self._config, self._config.rms_eps, self._parameters.embedding.dtype
        count = sum(meta.query_lens)
        padding = (0, self.rows.padded(count) - count)
        positions = torch.nn.functional.pad(meta.positions, padding)
        slots = torch.nn.functional.pad(meta.slots, padding, value=-1)
        seen = _Seen(meta, tokens.device)
        x = embedding(torch.nn.functional.pad(tokens, padding), self._parameters.embedding)
        if config.embedding_scale != 1.0:
            x *= self._scale
        delta: torch.Tensor | None = None
        post: torch.Tensor | None = None
        for index, (layer, pages) in enumerate(zip(self._parameters.layers, kv, strict=True)):
            angles = self._tables[index]
            normed = add_rms_norm(x, delta, layer.attention_norm, eps, dtype, post)
            qkv = linear(normed, layer.qkv, layer.qkv_bias, self.rows)
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
            prefill_attention(
                q[:count],
                pages,
                seen.starts,
                seen.contexts,
                meta.block_tables,
                mixed[:count],
                scale=config.attention_scale,
                window=config.windows[index],
                softcap=config.attention_softcap,
                max_query=seen.max_query,
            )
            delta = self._parallel.sum(linear(mixed.flatten(1), layer.output, layer.output_bias, self.rows))
            normed = add_rms_norm(x, delta, layer.ffn_norm, eps, dtype, layer.attention_post_norm)
            active = activate(linear(normed, layer.gate_up, layer.gate_up_bias, self.rows), config.activation)
            delta = self._parallel.sum(linear(active, layer.down, layer.down_bias, self.rows))
            post = layer.ffn_post_norm
        return add_rms_norm(x, delta, self._parameters.norm, eps, dtype, post)[:count]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `Decoder.logits`."""
        logits = linear(hidden, self._parameters.head, None, self.rows).float()
        return logits if self._config.logit_softcap is None else softcap(logits, self._config.logit_softcap)


class _Seen:
    """Which tokens the queries of a step see, as the kernel takes it."""

    def __init__(self, meta: AttentionMeta, device: torch.device) -> None:
        ends = torch.tensor((0, *meta.query_lens)).cumsum(0)
        self.starts = ends.to(device, torch.int32)
        self.contexts = torch.tensor(meta.context_lens, dtype=torch.int32).to(device)
        self.max_query = max(meta.query_lens)
