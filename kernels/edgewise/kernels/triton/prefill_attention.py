"""Attention of many new tokens a sequence over its paged cache, and what is done to their heads before.

A program has a block of a sequence's new tokens and one query head, and goes over the keys that they see in steps of absolute
positions. A step that a token does not see adds exact zeros to it, so a token's bits depend neither on the batch nor on how its
sequence was cut into chunks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from edgewise.kernels.paging import PAGE_TOKENS, SCALED_FORMATS, KVLayer
from edgewise.kernels.triton.attention_steps import LOG2E, softcapped
from edgewise.kernels.triton.head_rows import angles, rounded_head, turned_head
from edgewise.kernels.triton.launch import dot

_MOST_HEADS = 8  # that a program turns


class Blocks(NamedTuple):
    """Queries of a program, keys of a step, warps and stages."""

    queries: int
    keys: int
    warps: int
    stages: int


@triton.jit
def _append(
    qkv: tl.tensor,
    k_pages: tl.tensor,
    v_pages: tl.tensor,
    k_scales: tl.tensor,
    v_scales: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    norm: tl.tensor,
    q: tl.tensor,
    eps: tl.tensor,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    rotary: tl.constexpr,
    normed: tl.constexpr,
    page_tokens: tl.constexpr,
    block: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Grid (rows, (heads + 2 * kv_heads) / block); `block` divides heads and kv_heads."""
    stored: tl.constexpr = k_pages.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * block
    head = first + tl.arange(0, block)[:, None]
    place = tl.arange(0, width)[None, :]
    real = place < head_dim
    source = qkv + row * ((heads + 2 * kv_heads) * head_dim) + head * head_dim
    position = tl.load(positions + row).to(tl.int32)
    slot = tl.load(slots + row)
    if first < heads + kv_heads:
        c, s = angles(cos, sin, position, place, rotary)
        x = turned_head(source, place, head >= 0, norm + head * head_dim, c, s, eps, head_dim, rotary, normed)
    else:
        x = tl.load(source + place, mask=real, other=0.0).to(tl.float32)
    if first < heads:
        tl.store(q + (row * heads + head) * head_dim + place, x, mask=real)
    elif slot >= 0:
        is_key = first < heads + kv_heads
        kv_head = first - heads - tl.where(is_key, 0, kv_heads) + tl.arange(0, block)
        value, scale = rounded_head(x, stored)
        line = ((slot // page_tokens) * kv_heads + kv_head) * page_tokens + slot % page_tokens
        if is_key:
            tl.store(k_pages + line[:, None] * head_dim + place, value.to(stored), mask=real)
        else:
            tl.store(v_pages + line[:, None] * head_dim + place, value.to(stored), mask=real)
        if stored == tl.int8 or stored == tl.float8e4nv:
            if is_key:
                tl.store(k_scales + line, scale)
            else:
                tl.store(v_scales + line, scale)


@triton.jit
def _keys(
    q: tl.tensor,
    k_pages: tl.tensor,
    v_pages: tl.tensor,
    k_scales: tl.tensor,
    v_scales: tl.tensor,
    table: tl.tensor,
    position: tl.tensor,
    place: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    context: tl.tensor,
    kv_head: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
    masked: tl.constexpr,
    scale: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    window: tl.constexpr,
    softcap: tl.constexpr,
    page_tokens: tl.constexpr,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Adds the keys from `begin` to `end`."""
    stored: tl.constexpr = k_pages.dtype.element_ty
    scaled: tl.constexpr = stored == tl.int8 or stored == tl.float8e4nv
    factor: tl.constexpr = scale * LOG2E
    token = tl.arange(0, block_keys)
    for start in range(begin, end, block_keys):
        at = start + token
        real = at < context
        page = tl.load(table + at // page_tokens, mask=real, other=0).to(tl.int64)
        line = (page * kv_heads + kv_head) * page_tokens + at % page_tokens
        if masked:  # noqa: SIM108 - the compiler must not see the other branch
            mask = real[:, None] & (place < head_dim)
        else:
            mask = (at >= 0)[:, None] & (place < head_dim)
        k = tl.load(k_pages + line[:, None] * head_dim + place, mask=mask, other=0.0).to(q.dtype)
        v = tl.load(v_pages + line[:, None] * head_dim + place, mask=mask, other=0.0).to(q.dtype)
        score = dot(q, tl.trans(k), tl.zeros((block_queries, block_keys), dtype=tl.float32))
        if scaled:
            score *= tl.load(k_scales + line, mask=real, other=0.0)[None, :]
        if softcap > 0:
            score = softcapped(score * scale, softcap) * LOG2E
        else:
            score *= factor
        if masked:
            seen = at[None, :] <= position[:, None]
            if window > 0:
                seen &= at[None, :] > position[:, None] - window
            score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        safe = higher
        if window > 0:
            safe = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(weight, axis=1)
        if scaled:
            weight *= tl.load(v_scales + line, mask=real, other=0.0)[None, :]
        mixed = dot(weight.to(q.dtype), v, mixed * shrink[:, None])
        top = higher
    return top, total, mixed


@triton.jit
def _prefill(
    q: tl.tensor,
    k_pages: tl.tensor,
    v_pages: tl.tensor,
    k_scales: tl.tensor,
    v_scales: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out: tl.tensor,
    table_width: tl.tensor,
    scale: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    window: tl.constexpr,
    softcap: tl.constexpr,
    page_tokens: tl.constexpr,
    width: tl.constexpr,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
) -> None:
    """Grid (heads, blocks of queries, sequences), the last blocks, which see the most, first."""
    head, sequence = tl.program_id(0), tl.program_id(2)
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    context = tl.load(context_lens + sequence)
    first = block * block_queries
    if first >= count:
        return
    row = first + tl.arange(0, block_queries)
    position = context - count + row
    place = tl.arange(0, width)[None, :]
    cells = ((start + row).to(tl.int64) * heads + head)[:, None] * head_dim + place
    mask = (row < count)[:, None] & (place < head_dim)
    queries = tl.load(q + cells, mask=mask, other=0.0)
    top = tl.full((block_queries,), float("-inf"), tl.float32)
    total = tl.zeros((block_queries,), dtype=tl.float32)
    mixed = tl.zeros((block_queries, width), dtype=tl.float32)
    table = block_tables + sequence * table_width
    kv_head = head // (heads // kv_heads)
    oldest = 0
    seen_by_all = (context - count + first + 1) // block_keys * block_keys
    if window > 0:
        oldest = tl.maximum(context - count + first - window + 1, 0) // block_keys * block_keys
        seen_by_all = oldest
    else:
        top, total, mixed = _keys(
            queries, k_pages, v_pages, k_scales, v_scales, table, position, place, oldest, seen_by_all, context, kv_head,
            top, total, mixed, False, scale, kv_heads, head_dim, window, softcap, page_tokens, block_queries, block_keys,
        )  # fmt: skip
    end = tl.minimum(context, context - count + first + block_queries)
    top, total, mixed = _keys(
        queries, k_pages, v_pages, k_scales, v_scales, table, position, place, seen_by_all, end, context, kv_head,
        top, total, mixed, True, scale, kv_heads, head_dim, window, softcap, page_tokens, block_queries, block_keys,
    )  # fmt: skip
    tl.store(out + cells, mixed / total[:, None], mask=mask)


def rope_append(
    qkv: torch.Tensor,
    kv: KVLayer,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    q: torch.Tensor,
    *,
    heads: int,
    qk_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Norm and rotation of queries and keys, and storing of keys and values.

    Args:
        qkv: [rows, (heads + 2 * kv_heads) * head_dim]: queries, keys, values.
        kv: The layer's pages; changed.
        positions: [rows] int64, at least 0.
        slots: [rows] int64, where each token is written, as `AttentionMeta.slots`; -1 stores nothing.
        cos, sin: [positions, n / 2] float32 of a `RopeTable`, or None where the layer does not rotate.
        q: [rows, heads, head_dim], for the queries; contiguous.
        heads: Query heads.
        qk_norm: [heads + kv_heads, head_dim] float32, with `eps`.

    Raises:
        ValueError: Shapes do not agree.
    """
    rows, kv_heads, head_dim = qkv.shape[0], kv.k.shape[1], kv.k.shape[3]
    if qkv.shape[1] != (heads + 2 * kv_heads) * head_dim or q.shape != (rows, heads, head_dim):
        raise ValueError(f"qkv must be [rows, {(heads + 2 * kv_heads) * head_dim}], got {tuple(qkv.shape)}")
    if positions.shape != (rows,) or slots.shape != (rows,):
        raise ValueError(f"positions and slots must have {rows} rows")
    block = math.gcd(math.gcd(heads, kv_heads), _MOST_HEADS)
    if rows:
        _append[(rows, (heads + 2 * kv_heads) // block)](
            qkv,
            kv.k,
            kv.v,
            qkv if kv.k_scale is None else kv.k_scale,
            qkv if kv.v_scale is None else kv.v_scale,
            positions,
            slots,
            qkv if cos is None else cos,
            qkv if sin is None else sin,
            qkv if qk_norm is None else qk_norm,
            q,
            eps,
            heads,
            kv_heads,
            head_dim,
            0 if cos is None else 2 * cos.shape[1],
            qk_norm is not None,
            PAGE_TOKENS,
            block,
            triton.next_power_of_2(head_dim),
            num_warps=min(4, block),
            enable_fp_fusion=False,  # as decoding, which stores the same numbers
        )


def choose_blocks(dtype: torch.dtype, stored: torch.dtype, width: int) -> Blocks:
    """What fits into the shared memory of any card from capability 8.0 on (99 KiB on 8.6 and 8.9)."""
    if dtype == torch.float32:
        return Blocks(32, 32, 4, 1 if width > 128 else 2)
    if width > 128:
        return Blocks(64, 32, 4, 2)
    return Blocks(128, 64, 8 if width > 64 else 4, 2 if stored in SCALED_FORMATS else 3 if width <= 64 else 2)


def prefill_attention(
    q: torch.Tensor,
    kv: KVLayer,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    max_query: int,
    window: int | None = None,
    softcap: float | None = None,
    blocks: Blocks | None = None,
) -> torch.Tensor:
    """Causal attention of a ragged batch; keys and values of the new tokens are in the pages already.

    Args:
        q: [T, heads, head_dim], normalised and rotated; contiguous.
        kv: The layer's pages.
        query_starts: [sequences + 1] int32, where each sequence's new tokens begin in `q`, and T.
        context_lens: [sequences] int32, as `AttentionMeta`.
        block_tables: [sequences, pages] int32.
        out: [T, heads, head_dim], the dtype of `q`.
        scale, window, softcap: As `kernels.attention.paged_attention`.
        max_query: The largest number of new tokens.
        blocks: How the work is cut; None chooses.

    Raises:
        ValueError: Shapes or dtypes do not agree.
    """
    heads, kv_heads, head_dim = q.shape[1], kv.k.shape[1], kv.k.shape[3]
    if q.dim() != 3 or q.shape[2] != head_dim or heads % kv_heads or not q.is_contiguous():
        raise ValueError(f"q must be [T, heads, {head_dim}], contiguous, got {tuple(q.shape)}")
    if out.shape != q.shape or out.dtype != q.dtype or not out.is_contiguous():
        raise ValueError(f"out must be {tuple(q.shape)} {q.dtype}, contiguous, got {tuple(out.shape)} {out.dtype}")
    if kv.k.dtype in SCALED_FORMATS and (kv.k_scale is None or kv.v_scale is None):
        raise ValueError(f"{kv.k.dtype} pages need k_scale and v_scale")
    sequences = context_lens.shape[0]
    if query_starts.shape != (sequences + 1,) or block_tables.shape[0] != sequences:
        raise ValueError(f"query_starts must be [{sequences + 1}] and block_tables [{sequences}, pages]")
    width = triton.next_power_of_2(head_dim)
    blocks = blocks or choose_blocks(q.dtype, kv.k.dtype, width)
    if q.shape[0]:
        _prefill[(heads, triton.cdiv(max_query, blocks.queries), sequences)](
            q,
            kv.k,
            kv.v,
            q if kv.k_scale is None else kv.k_scale,
            q if kv.v_scale is None else kv.v_scale,
            query_starts,
            context_lens,
            block_tables,
            out,
            block_tables.stride(0),
            scale,
            heads,
            kv_heads,
            head_dim,
            window or 0,
            softcap or 0.0,
            PAGE_TOKENS,
            width,
            blocks.queries,
            blocks.keys,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
        )
    return out
