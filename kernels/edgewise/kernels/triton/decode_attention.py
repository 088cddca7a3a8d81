"""Attention of one new token a sequence over its paged cache, with all that comes between two products of a layer.

A program has a sequence, a KV head with all query heads that share it, and one run of absolute key positions. It normalises
and rotates its queries; the program of the last run does so with the new key, rounds it as the pages do, and stores it with its
value. Old keys come from the pages, the new one from registers, in the same step of the sums where it will be read later. Each
program leaves its maximum, sum and weighted values; a second kernel adds those in order of position. Which runs there are
depends on absolute positions alone, so a token's bits do not depend on the batch.

Scales of 8-bit pages multiply scores and weights, not keys and values: as numbers of 16 bits the codes are exact. Products and
sums are not joined by the compiler: it would do so one way for few rows and another for many, and the last bit of a key is enough
for another scale of its page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from edgewise.kernels.paging import PAGE_TOKENS, SCALED_FORMATS, KVLayer
from edgewise.kernels.triton.attention_steps import LOG2E, add_tokens, fetch_pages, leave, loaded, store_token
from edgewise.kernels.triton.head_rows import angles, turned_head
from edgewise.kernels.triton.launch import LINE_BYTES, begin

_STEP_TOKENS = 64
_MERGED = 32  # partial results that are added at a time


class AttentionForm(NamedTuple):
    """What decides a result's bits: the same for all rows of a model.

    Attributes:
        split_tokens: Key positions of a program, a power of two from 64 on.
        warps: Of a program; sums of a step's weights are dealt to them.
        halves: Whether 8-bit pages are unpacked to float16 by what `narrow` writes out, queries and weights being float16 beside
            them; else the compiler converts them to the dtype of the queries.
    """

    split_tokens: int = 256
    warps: int = 4
    halves: bool = False


DEFAULT_FORM = AttentionForm()


class AttentionBlocks(NamedTuple):
    """How attention is launched; nothing here changes a bit of a result.

    Attributes:
        stages: Of the pipeline of steps.
        registers: Of a thread at most; 0 leaves it to the compiler. More programs a multiprocessor hide each other's waits.
        fetched: Whether a program asks the L2 cache for its pages before it waits for the kernel before it.
        overlapped: Launched over the end of the kernel before it.
    """

    stages: int = 3
    registers: int = 0
    fetched: bool = False
    overlapped: bool = False


DEFAULT_BLOCKS = AttentionBlocks()


@dataclass(frozen=True, slots=True)
class Workspace:
    """Partial results: values [rows, heads, splits, head_dim], maxima and sums [rows, heads, splits]; float32."""

    values: torch.Tensor
    maxima: torch.Tensor
    sums: torch.Tensor

    @classmethod
    def empty(cls, rows: int, heads: int, head_dim: int, splits: int, device: torch.device) -> Workspace:
        return cls(
            torch.empty((rows, heads, splits, head_dim), device=device),
            torch.empty((rows, heads, splits), device=device),
            torch.empty((rows, heads, splits), device=device),
        )


def splits(max_context: int, form: AttentionForm = DEFAULT_FORM) -> int:
    """Programs per sequence and KV head for contexts up to `max_context`."""
    return -(-max_context // form.split_tokens)


@triton.jit
def _decode(
    qkv: tl.tensor,
    k_pages: tl.tensor,
    v_pages: tl.tensor,
    k_scales: tl.tensor,
    v_scales: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    block_tables: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    norm: tl.tensor,
    out: tl.tensor,
    values: tl.tensor,
    maxima: tl.tensor,
    sums: tl.tensor,
    table_width: tl.tensor,
    eps: tl.tensor,
    scale: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    rotary: tl.constexpr,
    normed: tl.constexpr,
    window: tl.constexpr,
    softcap: tl.constexpr,
    appends: tl.constexpr,
    split_tokens: tl.constexpr,
    step_tokens: tl.constexpr,
    page_tokens: tl.constexpr,
    width: tl.constexpr,
    block_group: tl.constexpr,
    wants_halves: tl.constexpr,
    fetched_lines: tl.constexpr,
    overlapped: tl.constexpr,
) -> None:
    """Grid (kv_heads, rows, splits); `width` is head_dim rounded up to a power of two, `block_group` the query heads."""
    kv_head, sequence, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = heads // kv_heads
    stored: tl.constexpr = k_pages.dtype.element_ty
    dtype: tl.constexpr = qkv.dtype.element_ty
    scaled: tl.constexpr = stored == tl.int8 or stored == tl.float8e4nv
    member, place = tl.arange(0, block_group)[:, None], tl.arange(0, width)[None, :]
    real = (member < group) & (place < head_dim)
    head, first = kv_head * group + member, split * split_tokens
    by_halves: tl.constexpr = wants_halves and scaled
    wide: tl.constexpr = tl.float16 if by_halves else dtype
    # Of the step, not of the kernel before this one: may be read before the wait.
    position = tl.load(positions + sequence).to(tl.int32)
    token, table = tl.arange(0, step_tokens), block_tables + sequence * table_width
    c, s = angles(cos, sin, tl.maximum(position, 0), place, rotary)
    if fetched_lines > 0:
        fetch_pages(
            k_pages, v_pages, table, first, tl.minimum(first + split_tokens, position), token, kv_head, kv_heads, head_dim,
            page_tokens, fetched_lines,
        )  # fmt: skip
    begin(overlapped)
    own = sequence * heads + head
    if (position < 0) & (split == 0):
        tl.store(out + own * head_dim + place, tl.zeros((block_group, width), dtype=dtype), mask=real)
    oldest = tl.maximum(position - window + 1, 0) if window > 0 else 0
    if (first > position) | (first + split_tokens <= oldest):
        return
    row = qkv + sequence.to(tl.int64) * ((heads + 2 * kv_heads) * head_dim)
    q = turned_head(
        row + head * head_dim, place, member < group, norm + head * head_dim, c, s, eps, head_dim, rotary, normed
    )
    q = (q * (scale * LOG2E)).to(wide)
    top, total = tl.full((block_group,), float("-inf"), tl.float32), tl.zeros((block_group,), dtype=tl.float32)
    mixed = tl.zeros((block_group, width), dtype=tl.float32)
    last = position // step_tokens * step_tokens
    lowest = tl.maximum(first, oldest // step_tokens * step_tokens)
    for start in range(lowest, tl.minimum(last, first + split_tokens), step_tokens):
        at = start + token
        # The mask holds in every step; loads are issued ahead, and beyond the last step a page is no page.
        page = tl.load(table + at // page_tokens, mask=at < last, other=0).to(tl.int64)
        line = (page * kv_heads + kv_head) * page_tokens + at % page_tokens
        k = loaded(k_pages, line, place, place < head_dim, head_dim, wide, by_halves)
        v = loaded(v_pages, line, place, place < head_dim, head_dim, wide, by_halves)
        k_scale, v_scale = top, top
        if scaled:
            k_scale, v_scale = tl.load(k_scales + line), tl.load(v_scales + line)
        top, total, mixed = add_tokens(
            q, k, v, k_scale, v_scale, at >= oldest, top, total, mixed, scaled, by_halves, softcap, block_group, step_tokens
        )  # fmt: skip
    if last >= first and last < first + split_tokens:
        at = last + token
        seen = (at >= oldest) & (at <= position)
        old = (seen & (at < position)) if appends else seen
        line = (tl.load(table + at // page_tokens, mask=old, other=0).to(tl.int64) * kv_heads + kv_head) * page_tokens
        line += at % page_tokens
        mask = old[:, None] & (place < head_dim)
        k = loaded(k_pages, line, place, mask, head_dim, wide, by_halves)
        v = loaded(v_pages, line, place, mask, head_dim, wide, by_halves)
        k_scale, v_scale = top, top
        if scaled:
            k_scale = tl.load(k_scales + line, mask=old, other=0.0)
            v_scale = tl.load(v_scales + line, mask=old, other=0.0)
        if appends:
            source = row + (heads + kv_head) * head_dim
            own_norm = norm + (heads + kv_head) * head_dim
            new_k, new_v, new_k_scale, new_v_scale = store_token(
                source, k_pages, v_pages, k_scales, v_scales, slots + sequence, c, s, own_norm, eps, place, kv_head,
                kv_heads, head_dim, rotary, normed, page_tokens,
            )  # fmt: skip
            k = tl.where((at == position)[:, None], new_k.to(wide), k)
            v = tl.where((at == position)[:, None], new_v.to(wide), v)
            if scaled:
                k_scale = tl.where(at == position, new_k_scale, k_scale)
                v_scale = tl.where(at == position, new_v_scale, v_scale)
        top, total, mixed = add_tokens(
            q, k, v, k_scale, v_scale, seen, top, total, mixed, scaled, by_halves, softcap, block_group, step_tokens
        )
    leave(
        out, values, maxima, sums, top, total, mixed, own, sequence * heads + kv_head * group, place, real, split, group,
        head_dim,
    )  # fmt: skip


@triton.jit
def _merge(
    positions: tl.tensor,
    values: tl.tensor,
    maxima: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    split_count: tl.tensor,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    window: tl.constexpr,
    split_tokens: tl.constexpr,
    block: tl.constexpr,
    width: tl.constexpr,
    overlapped: tl.constexpr,
) -> None:
    """Grid (heads, rows): adds the partial results of one query head, `block` at a time in order of position."""
    head, sequence = tl.program_id(0), tl.program_id(1)
    begin(overlapped)
    position = tl.load(positions + sequence).to(tl.int32)
    if position < 0:
        return
    own = sequence * heads + head
    first = 0
    if window > 0:
        first = tl.maximum(position - window + 1, 0) // split_tokens
    end = position // split_tokens + 1
    place, part = tl.arange(0, width), tl.arange(0, block)
    top = tl.full((), float("-inf"), tl.float32)
    for start in range(first // block * block, end, block):
        at = start + part
        mine = tl.load(maxima + own * split_count + at, mask=(at >= first) & (at < end), other=float("-inf"))
        top = tl.maximum(top, tl.max(mine, axis=0))
    total = tl.zeros((), dtype=tl.float32)
    mixed = tl.zeros((width,), dtype=tl.float32)
    for start in range(first // block * block, end, block):
        at = start + part
        mask = (at >= first) & (at < end)
        mine = tl.load(maxima + own * split_count + at, mask=mask, other=float("-inf"))
        weight = tl.exp2(mine - top)
        total += tl.sum(weight * tl.load(sums + own * split_count + at, mask=mask, other=0.0), axis=0)
        cells = (own * split_count + at).to(tl.int64)[:, None] * head_dim + place[None, :]
        rows = tl.load(values + cells, mask=mask[:, None] & (place < head_dim)[None, :], other=0.0)
        mixed += tl.sum(weight[:, None] * rows, axis=0)
    tl.store(out + own * head_dim + place, mixed / total, mask=place < head_dim)


def decode_attention(
    qkv: torch.Tensor,
    kv: KVLayer,
    positions: torch.Tensor,
    slots: torch.Tensor,
    block_tables: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    out: torch.Tensor,
    workspace: Workspace,
    *,
    heads: int,
    scale: float,
    max_context: int,
    window: int | None = None,
    softcap: float | None = None,
    qk_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    append: bool = True,
    form: AttentionForm = DEFAULT_FORM,
    blocks: AttentionBlocks = DEFAULT_BLOCKS,
) -> torch.Tensor:
    """Norm, rotation, storing and attention of one new token in each row.

    Args:
        qkv: [rows, (heads + 2 * kv_heads) * head_dim], bfloat16, float16 or float32: queries, keys, values of the new tokens.
        kv: The layer's pages; the new tokens are stored at `slots`.
        positions: [rows] int64, of the new token in its sequence; -1 in rows of padding, whose result is 0. With `slots` and
            `block_tables` it is written before the kernel that precedes this one begins (`launch.begin`).
        slots: [rows] int64, where the new token is written: page * PAGE_TOKENS + offset.
        block_tables: [rows, pages] int32.
        cos, sin: [positions, n / 2] float32 of a `RopeTable`, or None where the layer does not rotate.
        out: [rows, heads * head_dim], the dtype of `qkv`.
        workspace: For `splits(max_context, form)`; untouched where that is 1.
        heads: Query heads.
        scale: Multiplies the scores.
        max_context: Positions are below this; the grid depends on it, results do not.
        window, softcap: As `kernels.attention.paged_attention`.
        qk_norm: [heads + kv_heads, head_dim] float32, weights of the norm of queries and keys before rotation, with `eps`.
        append: False where the new tokens' keys and values are in the pages already (`rope_append`): rows may then be successive
            positions of one sequence. Queries are normalised and rotated here either way.
        form, blocks: How it is computed and launched.

    Raises:
        ValueError: Shapes or dtypes do not agree.
    """
    rows, kv_heads, head_dim = qkv.shape[0], kv.k.shape[1], kv.k.shape[3]
    _check(qkv, kv, positions, slots, block_tables, out, heads)
    count = splits(max_context, form)
    if count > 1 and workspace.values.shape != (rows, heads, count, head_dim):
        raise ValueError(
            f"the workspace must be for {(rows, heads, count, head_dim)}, got {tuple(workspace.values.shape)}"
        )
    launched = {"launch_pdl": True} if blocks.overlapped else {}
    unused = workspace.sums
    width = triton.next_power_of_2(head_dim)
    lines = max(1, head_dim * kv.k.element_size() // LINE_BYTES.value)
    _decode[(kv_heads, rows, count)](
        qkv,
        kv.k,
        kv.v,
        unused if kv.k_scale is None else kv.k_scale,
        unused if kv.v_scale is None else kv.v_scale,
        positions,
        slots,
        block_tables,
        unused if cos is None else cos,
        unused if sin is None else sin,
        unused if qk_norm is None else qk_norm,
        out,
        workspace.values,
        workspace.maxima,
        workspace.sums,
        block_tables.stride(0),
        eps,
        scale,
        heads,
        kv_heads,
        head_dim,
        0 if cos is None else 2 * cos.shape[1],
        qk_norm is not None,
        window or 0,
        softcap or 0.0,
        append,
        form.split_tokens,
        _STEP_TOKENS,
        PAGE_TOKENS,
        width,
        max(16, triton.next_power_of_2(heads // kv_heads)),
        form.halves,
        1 << (lines.bit_length() - 1) if blocks.fetched else 0,
        blocks.overlapped,
        num_warps=form.warps,
        num_stages=blocks.stages,
        enable_fp_fusion=False,
        **({"maxnreg": blocks.registers} if blocks.registers else {}),
        **launched,
    )
    if count > 1:
        _merge[(heads, rows)](
            positions,
            workspace.values,
            workspace.maxima,
            workspace.sums,
            out,
            count,
            heads,
            head_dim,
            window or 0,
            form.split_tokens,
            _MERGED,
            width,
            blocks.overlapped,
            num_warps=4,
            enable_fp_fusion=False,
            **launched,
        )
    return out


def _check(
    qkv: torch.Tensor,
    kv: KVLayer,
    positions: torch.Tensor,
    slots: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    heads: int,
) -> None:
    rows, kv_heads, head_dim = qkv.shape[0], kv.k.shape[1], kv.k.shape[3]
    if qkv.shape[1] != (heads + 2 * kv_heads) * head_dim or heads % kv_heads:
        raise ValueError(f"qkv must be [rows, {(heads + 2 * kv_heads) * head_dim}], got {tuple(qkv.shape)}")
    if out.shape != (rows, heads * head_dim) or out.dtype != qkv.dtype:
        raise ValueError(f"out must be {(rows, heads * head_dim)} {qkv.dtype}, got {tuple(out.shape)} {out.dtype}")
    if positions.shape != (rows,) or slots.shape != (rows,) or block_tables.shape[0] != rows:
        raise ValueError(f"positions, slots and block_tables must have {rows} rows")
    if kv.k.dtype in SCALED_FORMATS and (kv.k_scale is None or kv.v_scale is None):
        raise ValueError(f"{kv.k.dtype} pages need k_scale and v_scale")
