"""A step by the kernels of `kernels.triton`: five launches a layer, seven where results are normed, eight with experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.limits import PAGE_TOKENS
from edgewise.kernels.paging import KVLayer
from edgewise.kernels.softcap import softcap
from edgewise.kernels.triton import sampling
from edgewise.kernels.triton.decode_attention import Workspace, decode_attention, splits
from edgewise.kernels.triton.decode_product import Residual, Weight, add, gated, plain, project
from edgewise.kernels.triton.embed import embed
from edgewise.kernels.triton.plan import DEFAULT_PLAN, Plan
from edgewise.kernels.triton.post_norm import post_add
from edgewise.kernels.triton.prefill_attention import rope_append
from edgewise.kernels.triton.step_rows import move_on, slots_of
from edgewise.models.decoder.cuda.experts import step_experts
from edgewise.models.decoder.cuda.weights import CardWeights


class FusedStep:
    """`DecodeStep` on CUDA, of a decoder that `network.why_not` has nothing against.

    Args:
        weights: All of the decoder.
        kv: The pages.
        plan: How kernels are launched.
    """

    def __init__(self, weights: CardWeights, kv: Sequence[KVLayer], plan: Plan = DEFAULT_PLAN) -> None:
        self._plan = plan
        self._config = weights.config
        self._weights = weights
        self._kv = kv
        self._scale = weights.embedding_scale

    def __repr__(self) -> str:
        return f"FusedStep({self._config.architecture}, {self._config.num_layers} layers)"

    def logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        table: torch.Tensor,
        *,
        together: bool,
    ) -> torch.Tensor:
        config, layers, eps = self._config, self._weights.layers, self._config.rms_eps
        embedding, rows = self._weights.embedding, tokens.shape[0]
        heads, size = config.num_heads, config.head_dim

        def empty(columns: int, dtype: torch.dtype = embedding.dtype) -> torch.Tensor:
            return torch.empty((rows, columns), dtype=dtype, device=tokens.device)

        qkv, mixed = empty((heads + 2 * config.num_kv_heads) * size), empty(heads * size)
        active, logits = empty(config.ffn_size), empty(config.vocab_size, torch.float32)
        max_context = table.shape[1] * PAGE_TOKENS
        plan, form, blocks = self._plan, self._plan.attention_form, self._plan.attend(rows)
        workspace = Workspace.empty(rows, heads, size, splits(max_context, form), tokens.device)
        residual = Residual.empty(rows, config.hidden_size, embedding.dtype, tokens.device)
        turned = torch.empty((rows, heads, size), dtype=embedding.dtype, device=tokens.device) if together else None
        norms = [layer.attention_norm for layer in layers] + [self._weights.norm]
        embed(tokens, embedding, norms[0], residual, self._scale)
        for index, layer in enumerate(layers):
            angles = self._weights.tables[index]
            project(residual, layer.qkv, eps, qkv, plan.product("project", layer.qkv, rows))
            cos, sin = (None, None) if angles is None else (angles.cos, angles.sin)
            if turned is not None:
                rope_append(
                    qkv,
                    self._kv[index],
                    positions.clamp(min=0),
                    slots,
                    cos,
                    sin,
                    turned,
                    heads=heads,
                    qk_norm=layer.qk_norm,
                    eps=eps,
                )
            decode_attention(
                qkv,
                self._kv[index],
                positions,
                slots,
                table,
                cos,
                sin,
                mixed,
                workspace,
                heads=heads,
                scale=config.attention_scale,
                window=config.windows[index],
                softcap=config.attention_softcap,
                qk_norm=layer.qk_norm,
                eps=eps,
                max_context=max_context,
                append=not together,
                form=form,
                blocks=blocks,
            )
            self._add(mixed, layer.output, residual, layer.ffn_norm, layer.attention_post_norm)
            if layer.mixture is not None:
                step_experts(residual, layer, layer.mixture, config, slots, norms[index + 1], plan)
                continue
            cut = plan.product("gated", layer.gate_up, rows)
            gated(residual, layer.gate_up, eps, active, config.activation, cut)
            self._add(active, layer.down, residual, norms[index + 1], layer.ffn_post_norm)
        head = self._weights.head
        project(residual, head, eps, logits, plan.product("project", head, rows))
        return logits if config.logit_softcap is None else softcap(logits, config.logit_softcap)

    def _add(
        self, a: torch.Tensor, weight: Weight, residual: Residual, norm: torch.Tensor, post: torch.Tensor | None
    ) -> None:
        """x += a @ weight.T, whose result is normed before where there is a `post` norm; `norm` is the next one."""
        rows = a.shape[0]
        if post is None:
            add(a, weight, residual, norm, self._plan.product("add", weight, rows))
            return
        delta = torch.empty((rows, norm.shape[0]), dtype=a.dtype, device=a.device)
        plain(a, weight, delta, self._plan.product("plain", weight, rows))
        post_add(delta, post, residual, norm, self._config.rms_eps)

    def slots(self, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return slots_of(positions, table)

    def advance(self, positions: torch.Tensor, places: torch.Tensor) -> None:
        move_on(positions, places)

    def draw(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        places: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        sampling.draw(logits, temperature, min_p, seeds, places, out)
