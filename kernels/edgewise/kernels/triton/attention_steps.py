"""The parts of a program of decoding's attention: pages asked for and unpacked, a step of the sums, the new token, results."""

from __future__ import annotations

import triton
import triton.language as tl

from edgewise.kernels.triton.head_rows import rounded_head, turned_head
from edgewise.kernels.triton.launch import dot, fetch_rows
from edgewise.kernels.triton.narrow import halves

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def softcapped(x: tl.tensor, cap: tl.constexpr) -> tl.tensor:
    """cap * tanh(x / cap)."""
    return cap * (2.0 * tl.sigmoid(x * (2.0 / cap)) - 1.0)


@triton.jit
def loaded(
    pages: tl.tensor, line: tl.tensor, place: tl.tensor, mask: tl.tensor, head_dim: tl.constexpr, dtype: tl.constexpr,
    by_halves: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[lines, width] of pages, in `dtype`, which is float16 where numbers of 8 bits are unpacked `by_halves`."""
    x = tl.load(pages + line[:, None] * head_dim + place, mask=mask, other=0.0)
    if by_halves:
        return halves(x, True)
    return x.to(dtype)


@triton.jit
def fetch_pages(
    k_pages: tl.tensor,
    v_pages: tl.tensor,
    table: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    token: tl.tensor,
    kv_head: tl.tensor,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    page_tokens: tl.constexpr,
    lines: tl.constexpr,
) -> None:
    """Ask for keys and values of the positions from `first` to `end` to be brought into the L2 cache."""
    line_bytes: tl.constexpr = head_dim * k_pages.dtype.element_ty.primitive_bitwidth // 8
    for ahead in range(first, end, token.shape[0]):
        at = tl.minimum(ahead + token, end - 1)
        page = tl.load(table + at // page_tokens).to(tl.int64)
        line = (page * kv_heads + kv_head) * page_tokens + at % page_tokens
        fetch_rows(k_pages, line, line_bytes, lines)
        fetch_rows(v_pages, line, line_bytes, lines)


@triton.jit
def add_tokens(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    k_scale: tl.tensor,
    v_scale: tl.tensor,
    seen: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
    scaled: tl.constexpr,
    by_halves: tl.constexpr,
    softcap: tl.constexpr,
    block_group: tl.constexpr,
    step_tokens: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """One step of the softmax (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"), to base 2."""
    score = dot(q, tl.trans(k), tl.zeros((block_group, step_tokens), dtype=tl.float32))
    if scaled:
        score *= k_scale[None, :]
    if softcap > 0:
        score = softcapped(score / LOG2E, softcap) * LOG2E
    score = tl.where(seen[None, :], score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, axis=1))
    safe = tl.where(higher == float("-inf"), 0.0, higher)
    weight = tl.exp2(score - safe[:, None])
    shrink = tl.exp2(top - safe)
    total = total * shrink + tl.sum(weight, axis=1)
    mixed *= shrink[:, None]
    if by_halves:
        # Relative to the largest, so that float16 holds the weights of small values too.
        largest = tl.max(v_scale, axis=0)
        unit = tl.where(largest > 0.0, largest, 1.0)
        part = dot((weight * (v_scale / unit)[None, :]).to(v.dtype), v, tl.zeros(mixed.shape, dtype=tl.float32))
        mixed += part * unit
    else:
        if scaled:
            weight *= v_scale[None, :]
        mixed = dot(weight.to(v.dtype), v, mixed)
    return higher, total, mixed


@triton.jit
def store_token(
    source: tl.tensor,
    k_pages: tl.tensor,
    v_pages: tl.tensor,
    k_scales: tl.tensor,
    v_scales: tl.tensor,
    slots: tl.tensor,
    c: tl.tensor,
    s: tl.tensor,
    norm: tl.tensor,
    eps: tl.tensor,
    place: tl.tensor,
    kv_head: tl.tensor,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    rotary: tl.constexpr,
    normed: tl.constexpr,
    page_tokens: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Stores the new key and value; as the pages hold them [1, width], and their scales [1]."""
    stored: tl.constexpr = k_pages.dtype.element_ty
    new = tl.arange(0, 1)[:, None]
    key, weight = source + new * head_dim, norm + new * head_dim
    k = turned_head(key, place, new < 1, weight, c, s, eps, head_dim, rotary, normed)
    v = tl.load(key + kv_heads * head_dim + place, mask=place < head_dim, other=0.0).to(tl.float32)
    k, k_scale = rounded_head(k, stored)
    v, v_scale = rounded_head(v, stored)
    slot = tl.load(slots)
    target = ((slot // page_tokens) * kv_heads + kv_head) * page_tokens + slot % page_tokens
    tl.store(k_pages + target * head_dim + place, k.to(stored), mask=place < head_dim)
    tl.store(v_pages + target * head_dim + place, v.to(stored), mask=place < head_dim)
    if stored == tl.int8 or stored == tl.float8e4nv:
        tl.store(k_scales + target + tl.arange(0, 1), k_scale)
        tl.store(v_scales + target + tl.arange(0, 1), v_scale)
    return k, v, k_scale, v_scale


@triton.jit
def leave(
    out: tl.tensor,
    values: tl.tensor,
    maxima: tl.tensor,
    sums: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
    head: tl.tensor,
    first_head: tl.tensor,
    place: tl.tensor,
    real: tl.tensor,
    split: tl.tensor,
    group: tl.constexpr,
    head_dim: tl.constexpr,
) -> None:
    """Store the result where there is one run, else this run's part of it; `head` [group, 1] counts those of all rows."""
    split_count = tl.num_programs(2)
    if split_count == 1:
        tl.store(out + head * head_dim + place, mixed / total[:, None], mask=real)
    else:
        part = head * split_count + split
        tl.store(values + part.to(tl.int64) * head_dim + place, mixed, mask=real)
        member = tl.arange(0, top.shape[0])
        entry = (first_head + member) * split_count + split
        tl.store(maxima + entry, top, mask=member < group)
        tl.store(sums + entry, total, mask=member < group)
