"""Attention of decoding on random pages, for the tuner: whether a way to compute it is right, and calls of it to be timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from edgewise.kernels.attention import paged_attention
from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.paging import PAGE_TOKENS, SCALED_FORMATS, AttentionMeta, KVLayer
from edgewise.kernels.rms_norm import rms_norm
from edgewise.kernels.rope import RopeTable, apply_rope, rope_rows
from edgewise.kernels.triton.decode_attention import (
    DEFAULT_BLOCKS,
    AttentionBlocks,
    AttentionForm,
    Workspace,
    decode_attention,
    splits,
)
from edgewise.kernels.triton.tuning import Call

LIMIT = 1e-2
"""Relative error to the reference operations in float32 over the same pages."""
_LENGTHS = (1, 63, 65, 256, 257, 511, 513, 1030)
_COPIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What a layer's attention is.

    Attributes:
        stored: Type of the pages.
        dtype: Of queries.
        table: Angles, or None.
    """

    heads: int
    kv_heads: int
    head_dim: int
    stored: torch.dtype
    dtype: torch.dtype
    scale: float
    table: RopeTable | None = None
    window: int | None = None
    softcap: float | None = None
    normed: bool = False


class AttentionTrial:
    """Args:
    shape: What is computed.
    device: Where.
    most_tokens: Of all sequences that are timed together: so many are allocated; 0 where nothing is timed.
    max_context: The longest context.
    """

    def __init__(self, shape: AttentionShape, device: torch.device, *, most_tokens: int, max_context: int) -> None:
        self._shape, self._device = shape, device
        self._generator = torch.Generator(device).manual_seed(11)
        self._lengths = [length for length in _LENGTHS if length <= max_context]
        needed = sum(-(-length // PAGE_TOKENS) for length in self._lengths)
        self._checked = self._random_pages(needed)
        self._layer = self._random_pages(max(1, -(-most_tokens // PAGE_TOKENS)))
        norm = self._random(shape.heads + shape.kv_heads, shape.head_dim)
        self._norm = norm.abs() + 0.5 if shape.normed else None

    def problem(self, form: AttentionForm, blocks: AttentionBlocks) -> str:
        """What is wrong, in words; "" where nothing is."""
        rows = len(self._lengths)
        qkv = self._qkv(rows)
        tables = self._tables(self._lengths, 0)
        layer, expected = self._expected(qkv, tables)
        most = max(self._lengths)
        found, own = self._run(qkv, tables, self._lengths, most, form, blocks)
        if not bool(found.isfinite().all()):
            return "results that were not written, or are not finite"
        error = float((found.double() - expected.double()).norm() / expected.double().norm())
        if not error <= LIMIT:
            return f"an error of {error:.2g} to the reference, {LIMIT:g} is allowed"
        if not _near(own, layer):
            return "other keys or values are stored than the reference stores"
        for row, length in enumerate(self._lengths):
            one = slice(row, row + 1)
            alone, pages = self._run(qkv[one], tables[one], [length], 4 * most, form, DEFAULT_BLOCKS)
            if not torch.equal(alone[0], found[row]):
                return "a row's bits differ from those that it has alone by the default"
            if not _same_page(own, pages, int(tables[row, (length - 1) // PAGE_TOKENS])):
                return "a row stores other bits than it does alone by the default"
        return ""

    def calls(self, form: AttentionForm, blocks: AttentionBlocks, rows: int, context: int) -> Sequence[Call]:
        """Over as many places in the pages as there are, `_COPIES` at most."""
        own = rows * -(-context // PAGE_TOKENS)
        copies = max(1, min(_COPIES, self._layer.k.shape[0] // own))
        qkv, lengths = self._qkv(rows), [context] * rows
        return [self._call(qkv, lengths, own * copy, form, blocks) for copy in range(copies)]

    def _call(
        self, qkv: torch.Tensor, lengths: Sequence[int], first: int, form: AttentionForm, blocks: AttentionBlocks
    ) -> Call:
        tables = self._tables(lengths, first)
        prepared = self._prepared(qkv, tables, lengths, max(lengths), form)
        return lambda: self._launch(self._layer, *prepared, max_context=max(lengths), form=form, blocks=blocks)

    def _run(
        self,
        qkv: torch.Tensor,
        tables: torch.Tensor,
        lengths: Sequence[int],
        max_context: int,
        form: AttentionForm,
        blocks: AttentionBlocks,
    ) -> tuple[torch.Tensor, KVLayer]:
        layer = _copy(self._checked)
        prepared = self._prepared(qkv, tables, lengths, max_context, form)
        out = self._launch(layer, *prepared, max_context=max_context, form=form, blocks=blocks)
        return out.float(), layer

    def _prepared(
        self,
        qkv: torch.Tensor,
        tables: torch.Tensor,
        lengths: Sequence[int],
        max_context: int,
        form: AttentionForm,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Workspace]:
        shape, rows = self._shape, len(lengths)
        positions = torch.tensor(lengths, device=self._device) - 1
        slots = (
            tables.gather(1, (positions // PAGE_TOKENS)[:, None])[:, 0].long() * PAGE_TOKENS + positions % PAGE_TOKENS
        )
        out = torch.full((rows, shape.heads * shape.head_dim), torch.nan, dtype=qkv.dtype, device=self._device)
        space = Workspace.empty(rows, shape.heads, shape.head_dim, splits(max_context, form), self._device)
        for each in (space.values, space.maxima, space.sums):
            each.fill_(torch.nan)
        return qkv.contiguous(), positions, slots, tables.contiguous(), out, space

    def _launch(
        self,
        layer: KVLayer,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        tables: torch.Tensor,
        out: torch.Tensor,
        space: Workspace,
        *,
        max_context: int,
        form: AttentionForm,
        blocks: AttentionBlocks,
    ) -> torch.Tensor:
        shape = self._shape
        cos, sin = (None, None) if shape.table is None else (shape.table.cos, shape.table.sin)
        return decode_attention(
            qkv, layer, positions, slots, tables, cos, sin, out, space, heads=shape.heads, scale=shape.scale,
            max_context=max_context, window=shape.window, softcap=shape.softcap, qk_norm=self._norm, eps=1e-6, form=form,
            blocks=blocks,
        )  # fmt: skip

    def _expected(self, qkv: torch.Tensor, tables: torch.Tensor) -> tuple[KVLayer, torch.Tensor]:
        shape, rows, layer = self._shape, qkv.shape[0], _copy(self._checked)
        x = qkv.float().view(rows, -1, shape.head_dim)
        qk, v = x[:, : shape.heads + shape.kv_heads], x[:, shape.heads + shape.kv_heads :]
        if self._norm is not None:
            qk = rms_norm(qk, self._norm, 1e-6)
        positions = torch.tensor(self._lengths, device=self._device) - 1
        if shape.table is not None:
            qk = apply_rope(qk, rope_rows(shape.table, positions))
        slots = (
            tables.gather(1, (positions // PAGE_TOKENS)[:, None])[:, 0].long() * PAGE_TOKENS + positions % PAGE_TOKENS
        )
        write_kv(layer, qk[:, shape.heads :], v, slots)
        meta = AttentionMeta((1,) * rows, tuple(self._lengths), positions, slots, tables)
        found = paged_attention(
            qk[:, : shape.heads].contiguous(),
            layer,
            meta,
            scale=shape.scale,
            window=shape.window,
            softcap=shape.softcap,
        )
        return layer, found.view(rows, -1)

    def _tables(self, lengths: Sequence[int], first: int) -> torch.Tensor:
        counts = [-(-length // PAGE_TOKENS) for length in lengths]
        tables = torch.zeros((len(lengths), max(counts)), dtype=torch.int32)
        for row, count in enumerate(counts):
            tables[row, :count] = torch.arange(first, first + count)
            first += count
        return tables.to(self._device)

    def _qkv(self, rows: int) -> torch.Tensor:
        shape = self._shape
        return self._random(rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim).to(shape.dtype)

    def _random(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self._generator, device=self._device)

    def _random_pages(self, count: int) -> KVLayer:
        size = (count, self._shape.kv_heads, PAGE_TOKENS, self._shape.head_dim)
        return random_pages(size, self._shape.stored, self._generator)


def random_pages(size: tuple[int, int, int, int], stored: torch.dtype, generator: torch.Generator) -> KVLayer:
    """Pages [count, kv_heads, PAGE_TOKENS, head_dim] of normally distributed keys and values."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=generator.device)

    if stored not in SCALED_FORMATS:
        return KVLayer(*(random(*size).to(stored) for _ in range(2)))
    most = 127.0 if stored == torch.int8 else 448.0
    parts = [(random(*size) * (most / 4)).clamp(-most, most).to(stored) for _ in range(2)]
    scales = [random(*size[:3]).abs() * (1.0 / most) + 1.0 / most for _ in range(2)]
    return KVLayer(*parts, *scales)


def _copy(layer: KVLayer) -> KVLayer:
    return replace(
        layer,
        k=layer.k.clone(),
        v=layer.v.clone(),
        k_scale=None if layer.k_scale is None else layer.k_scale.clone(),
        v_scale=None if layer.v_scale is None else layer.v_scale.clone(),
    )


def _same_page(one: KVLayer, other: KVLayer, page: int) -> bool:
    parts = [(one.k, other.k), (one.v, other.v), (one.k_scale, other.k_scale), (one.v_scale, other.v_scale)]
    return all(
        torch.equal(a[page].view(torch.uint8), b[page].view(torch.uint8))
        for a, b in parts
        if a is not None and b is not None
    )


def _near(one: KVLayer, other: KVLayer) -> bool:
    """Whether pages hold the same but for the last bit of numbers; of rounded ones, for one code and the last bits of scales.

    Codes are what is compared, not the numbers that they stand for: between the largest of fp8 a step is a fourteenth of them.
    """
    pairs = [(one.k, other.k, one.k_scale, other.k_scale), (one.v, other.v, one.v_scale, other.v_scale)]
    for own, wanted, scale, wanted_scale in pairs:
        if scale is None or wanted_scale is None:
            a, b = own.float(), wanted.float()
            near = (a - b).abs() <= 0.02 * b.abs().amax(-1, keepdim=True)
        else:
            near = (_ordered(own) - _ordered(wanted)).abs() <= 1
            near &= ((scale - wanted_scale).abs() <= 1e-4 * wanted_scale)[..., None] & own.float().isfinite()
        if not bool(near.all()):
            return False
    return True


def _ordered(codes: torch.Tensor) -> torch.Tensor:
    """int32, the next number's one more: int8 as they are, of fp8 (sign and magnitude) the place among all numbers."""
    if codes.dtype == torch.int8:
        return codes.int()
    bits = codes.view(torch.uint8).int()
    return torch.where(bits >= 128, 128 - bits, bits)
