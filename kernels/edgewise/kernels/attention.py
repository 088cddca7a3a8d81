"""Causal attention of a ragged batch over the paged KV cache."""

from __future__ import annotations

import torch

from edgewise.kernels.back_end import BackEnd
from edgewise.kernels.native import attention as native
from edgewise.kernels.paging import SCALED_FORMATS, AttentionMeta, KVLayer
from edgewise.kernels.reference import attention as reference
from edgewise.kernels.reference.attention_plan import AttentionPlan, Shape
from edgewise.kernels.reference.attention_plan import plan as build_plan
from edgewise.kernels.reference.scratch import Scratch

__all__ = ["AttentionPlan", "Scratch", "paged_attention", "plan_attention"]


def plan_attention(
    meta: AttentionMeta,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None = None,
    scratch: Scratch | None = None,
) -> AttentionPlan:
    """Prepare what all layers of one step with the same window share: which pages to read and what to mask.

    `scratch` may be shared by all plans of one thread; without it the plan has its own.

    Raises:
        ValueError: `heads` is no multiple of `kv_heads`, the window is not positive, or `meta` contradicts itself.
    """
    _check(meta, heads, kv_heads, window)
    shape = Shape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
    return build_plan(meta, shape, scratch or Scratch())


def _check(meta: AttentionMeta, heads: int, kv_heads: int, window: int | None) -> None:
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    if not len(meta.query_lens) == len(meta.context_lens) == meta.block_tables.shape[0]:
        raise ValueError("query_lens, context_lens and block_tables must have one entry per sequence")
    if any(not 1 <= new <= total for new, total in zip(meta.query_lens, meta.context_lens, strict=True)):
        raise ValueError(f"each query length must be in [1, context length]: {meta.query_lens}, {meta.context_lens}")
    if meta.visible is not None:
        _check_visible(meta, meta.visible, window)


def _check_visible(meta: AttentionMeta, visible: torch.Tensor, window: int | None) -> None:
    """A token that saw nothing would be NaN, one that saw beyond the context another sequence's pages."""
    if visible.shape != meta.positions.shape or visible.dtype != torch.int64:
        raise ValueError(f"visible must be [T] int64, got {tuple(visible.shape)} {visible.dtype}")
    contexts = torch.tensor(meta.context_lens).repeat_interleave(torch.tensor(meta.query_lens))
    seen = visible.cpu()
    first = torch.zeros_like(seen) if window is None else (meta.positions.cpu() - window + 1).clamp(min=0)
    if bool(((seen < first) | (seen >= contexts)).any()):
        raise ValueError("each token must see a position within its sequence's context, and within the window")


def paged_attention(
    q: torch.Tensor,
    kv: KVLayer,
    meta: AttentionMeta,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    plan: AttentionPlan | None = None,
    back_end: BackEnd = "reference",
) -> torch.Tensor:
    """softmax(q k^T * scale) v over each sequence's own cache, in float32 whatever the storage.

    The token at position p attends to positions in (p - window, p], or in (p - window, meta.visible] where that is given. Its
    result has the same bits whatever else is in the batch and however the sequence was cut into chunks: work is done in tiles
    of 256 absolute key positions, tile sums are added in order of position, and masked tiles add exact zeros.

    Args:
        q: [rows, heads, head_dim] floating point, rows >= T; rows beyond the T tokens of `meta` are padding.
        kv: The layer's pages, this step's keys and values already written.
        meta: Layout of the batch.
        scale: Multiplies the scores; usually head_dim ** -0.5.
        window: Positions that a token sees, itself included; None for all before it.
        softcap: Scores are kept within (-softcap, softcap) by tanh, as in `kernels.softcap`; None leaves them.
        plan: `plan_attention` of the same arguments if the caller has it from another layer; `native` needs none.
        back_end: `native` is on the CPU; int8 pages meet queries rounded to 16 bits and weights rounded to 15 there.

    Returns:
        [rows, heads, head_dim], the dtype of `q`; zero in padding rows.

    Raises:
        ValueError: Shapes or dtypes do not agree, or `plan` was made for another shape or window.
        NativeUnavailable: `native` was asked for and there is no library.
    """
    tokens = sum(meta.query_lens)
    kv_heads, head_dim = kv.k.shape[1], kv.k.shape[3]
    if q.dim() != 3 or q.shape[0] < tokens or q.shape[2] != head_dim:
        raise ValueError(f"q must be [>= {tokens}, heads, {head_dim}], got {tuple(q.shape)}")
    if kv.k.dtype in SCALED_FORMATS and (kv.k_scale is None or kv.v_scale is None):
        raise ValueError(f"{kv.k.dtype} pages need k_scale and v_scale")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be positive, got {softcap}")
    if back_end == "native":
        _check(meta, q.shape[1], kv_heads, window)
        return native.attention(q, kv, meta, scale, window, softcap)
    if plan is None:
        plan = plan_attention(meta, heads=q.shape[1], kv_heads=kv_heads, head_dim=head_dim, window=window)
    if plan.shape != Shape(heads=q.shape[1], kv_heads=kv_heads, head_dim=head_dim, window=window):
        raise ValueError(f"the plan was made for {plan.shape}")
    return reference.attention(q, kv, plan, scale, softcap)
