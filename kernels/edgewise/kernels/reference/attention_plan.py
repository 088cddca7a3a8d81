"""Which pages an attention call reads, in which order, and what it masks. Depends on the batch alone, not on a layer's data.

A *group* is what is computed in one go: one new token of several sequences (decode), or up to some hundred query rows of one
sequence (prefill). Its tiles are listed ordinal by ordinal: the first tile of every sequence, then the second of every
sequence that has one, and so on. Sequences are sorted by falling tile count, so those that have an n-th tile are a prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.kernels.limits import (
    GATHER_BYTES,
    MAX_QUERY_ROWS,
    QUERY_ROW_MULTIPLE,
    SCORE_BYTES,
    TILE_TOKENS,
    round_up,
)
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta
from edgewise.kernels.reference.scratch import Scratch

TILE_PAGES = TILE_TOKENS // PAGE_TOKENS
_FLOAT_BYTES = 4

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a plan is valid for."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of a group's tiles whose keys or values are gathered together.

    Attributes:
        first, last: Tiles [first, last) of the group.
        ordinals: (first, last) tile of each ordinal in the run, relative to `first`.
        partial: Gathered pages that hold slots beyond the context (foreign or never written, perhaps NaN), as indices into
            the gathered [tiles * heads * TILE_PAGES] pages; None if there are none.
        beyond: [len(partial), PAGE_TOKENS] bool, those slots.
    """

    first: int
    last: int
    ordinals: tuple[tuple[int, int], ...]
    partial: torch.Tensor | None
    beyond: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Group:
    """Query rows that are computed together: `tokens` of each of `sequences`.

    Attributes:
        token_rows: [sequences * tokens] int64, rows of q.
        rows: Query rows per KV head with padding, a multiple of QUERY_ROW_MULTIPLE.
        head_step: KV heads per pass; divides the number of KV heads.
        pages: [tiles * head_step * TILE_PAGES] int64, for KV heads [0, head_step) of a layer seen as
            [pages * kv_heads, PAGE_TOKENS, head_dim].
        counts: Number of tiles of each ordinal; the first is `sequences`.
        owner: [tiles] int64, place of each tile's sequence in the group; None if all are 0 or there is one tile each.
        mask_from: First tile that needs a mask.
        masked: [tiles - mask_from, 1, rows or 1, TILE_TOKENS] bool, True where a row must not look.
    """

    sequences: int
    tokens: int
    token_rows: torch.Tensor
    rows: int
    head_step: int
    pages: torch.Tensor
    counts: tuple[int, ...]
    owner: torch.Tensor | None
    mask_from: int
    masked: torch.Tensor
    segments: tuple[Segment, ...]

    @property
    def tiles(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    shape: Shape
    groups: tuple[Group, ...]
    scratch: Scratch


@dataclass(frozen=True, slots=True)
class _Span:
    """`count` new tokens of sequence `sequence`, the first at row `row` of q and at position `position`.

    `seen` is the last position that each of them sees.
    """

    sequence: int
    row: int
    position: int
    count: int
    context: int
    seen: Ints

    def tiles(self, window: int | None) -> tuple[int, int]:
        """First and last + 1 tile that some token of the span looks at."""
        first = 0 if window is None else max(0, self.position - window + 1) // TILE_TOKENS
        return first, int(self.seen.max()) // TILE_TOKENS + 1

    def tile_count(self, window: int | None) -> int:
        first, last = self.tiles(window)
        return last - first


def plan(meta: AttentionMeta, shape: Shape, scratch: Scratch) -> AttentionPlan:
    spans = _spans(meta)
    decode = sorted((s for s in spans if s.count == 1), key=lambda s: -s.tile_count(shape.window))
    groups = [*_decode_groups(decode, shape), *(b for s in spans if s.count > 1 for b in _blocks(s, shape))]
    return AttentionPlan(shape, tuple(_group(meta, group, shape) for group in groups), scratch)


def _spans(meta: AttentionMeta) -> list[_Span]:
    spans, row = [], 0
    visible = None if meta.visible is None else meta.visible.cpu().numpy()
    for sequence, (count, context) in enumerate(zip(meta.query_lens, meta.context_lens, strict=True)):
        seen = np.arange(context - count, context) if visible is None else visible[row : row + count]
        spans.append(_Span(sequence, row, context - count, count, context, seen))
        row += count
    return spans


def _score_bytes(tiles: int, rows: int) -> int:
    """Of one KV head."""
    return tiles * rows * TILE_TOKENS * _FLOAT_BYTES


def _decode_groups(spans: list[_Span], shape: Shape) -> list[list[_Span]]:
    rows = round_up(shape.group, QUERY_ROW_MULTIPLE)
    groups: list[list[_Span]] = []
    used = SCORE_BYTES + 1
    for span in spans:
        need = _score_bytes(span.tile_count(shape.window), rows) * shape.kv_heads
        if used + need > SCORE_BYTES:
            groups.append([])
            used = 0
        groups[-1].append(span)
        used += need
    return groups


def _blocks(span: _Span, shape: Shape) -> list[list[_Span]]:
    """Cut a prefill chunk so that one KV head's scores stay within the scratch."""
    fitting = SCORE_BYTES // _score_bytes(span.tile_count(shape.window), 1)
    rows = max(QUERY_ROW_MULTIPLE, min(MAX_QUERY_ROWS, fitting))
    step = max(1, rows // shape.group)
    step = step // QUERY_ROW_MULTIPLE * QUERY_ROW_MULTIPLE or step
    starts = range(0, span.count, step)
    return [[_part(span, at, min(step, span.count - at))] for at in starts]


def _part(span: _Span, at: int, count: int) -> _Span:
    """Tokens [at, at + count) of a span."""
    seen = span.seen[at : at + count]
    return _Span(span.sequence, span.row + at, span.position + at, count, span.context, seen)


def _group(meta: AttentionMeta, spans: list[_Span], shape: Shape) -> Group:
    device = meta.block_tables.device
    tokens = spans[0].count
    rows = round_up(tokens * shape.group, QUERY_ROW_MULTIPLE)
    counts, owner, tile = _tile_list(spans, shape.window)
    head_step = _head_step(len(tile), rows, shape.kv_heads)
    columns, pages = _pages(meta, spans, owner, tile, shape.window)
    heads = torch.arange(head_step, device=device)
    pool_rows = (pages[:, None, :] * shape.kv_heads + heads[None, :, None]).flatten()
    mask_from, masked = _mask(spans, owner, tile, rows, shape)
    token_rows = np.concatenate([np.arange(s.row, s.row + s.count) for s in spans])
    return Group(
        sequences=len(spans),
        tokens=tokens,
        token_rows=torch.from_numpy(token_rows).to(device),
        rows=rows,
        head_step=head_step,
        pages=pool_rows,
        counts=counts,
        owner=torch.from_numpy(owner).to(device) if len(spans) > 1 and len(counts) > 1 else None,
        mask_from=mask_from,
        masked=torch.from_numpy(masked).to(device),
        segments=_segments(spans, counts, owner, columns, rows, head_step, shape, device),
    )


def _tile_list(spans: list[_Span], window: int | None) -> tuple[tuple[int, ...], Ints, Ints]:
    """Counts per ordinal; place of the owner and absolute number of each tile."""
    lengths = np.array([s.tile_count(window) for s in spans])
    counts = tuple(int((lengths > ordinal).sum()) for ordinal in range(int(lengths[0])))
    owner = np.concatenate([np.arange(count) for count in counts])
    ordinal = np.repeat(np.arange(len(counts)), counts)
    first = np.array([s.tiles(window)[0] for s in spans])
    return counts, owner, first[owner] + ordinal


def _head_step(tiles: int, rows: int, kv_heads: int) -> int:
    return max(
        step for step in range(1, kv_heads + 1) if kv_heads % step == 0 and (step == 1 or _fits(tiles, rows, step))
    )


def _fits(tiles: int, rows: int, heads: int) -> bool:
    return _score_bytes(tiles, rows) * heads <= SCORE_BYTES


def _pages(
    meta: AttentionMeta, spans: list[_Span], owner: Ints, tile: Ints, window: int | None
) -> tuple[Ints, torch.Tensor]:
    """[tiles, TILE_PAGES] columns of the block table, and the pages found there.

    Beyond a sequence's last page stands its own first page, so that no foreign data is read where a weight of zero could
    meet NaN.
    """
    first = np.array([s.tiles(window)[0] for s in spans]) * TILE_PAGES
    used = np.array([-(-s.context // PAGE_TOKENS) for s in spans])
    columns = tile[:, None] * TILE_PAGES + np.arange(TILE_PAGES)
    columns = np.where(columns < used[owner][:, None], columns, first[owner][:, None])
    sequences = np.array([s.sequence for s in spans])[owner]
    device = meta.block_tables.device
    index = torch.from_numpy(sequences).to(device)[:, None], torch.from_numpy(columns).to(device)
    return columns, meta.block_tables[index].long()


def _mask(spans: list[_Span], owner: Ints, tile: Ints, rows: int, shape: Shape) -> tuple[int, NDArray[np.bool_]]:
    if len(spans) > 1 or shape.window is not None:
        start = 0
    else:  # tiles that every token sees whole need none
        start = int(np.searchsorted((tile + 1) * TILE_TOKENS - 1, int(spans[0].seen.min()), side="right"))
    keys = (tile[start:, None] * TILE_TOKENS + np.arange(TILE_TOKENS))[:, None, None, :]
    if spans[0].count == 1:
        seen = np.array([s.seen[0] for s in spans])[owner[start:], None, None, None]
        queries = np.array([s.position for s in spans])[owner[start:], None, None, None]
    else:
        offsets = np.minimum(np.arange(rows) // shape.group, spans[0].count - 1)
        seen = spans[0].seen[offsets][None, None, :, None]
        queries = (spans[0].position + offsets)[None, None, :, None]
    masked = keys > seen
    if shape.window is not None:
        masked |= keys <= queries - shape.window
    return start, masked


def _segments(
    spans: list[_Span],
    counts: tuple[int, ...],
    owner: Ints,
    columns: Ints,
    rows: int,
    head_step: int,
    shape: Shape,
    device: torch.device,
) -> tuple[Segment, ...]:
    """Cut at ordinals, so that keys (or values), copied queries and results of a run stay within the scratch."""
    tile_bytes = head_step * shape.head_dim * _FLOAT_BYTES * (TILE_TOKENS + rows)
    starts = np.concatenate([[0], np.cumsum(counts)])
    segments, first = [], 0
    for ordinal in range(len(counts)):
        full = ordinal + 1 == len(counts) or int(starts[ordinal + 2] - starts[first]) * tile_bytes > GATHER_BYTES
        if full:
            a, b = int(starts[first]), int(starts[ordinal + 1])
            bounds = [(int(starts[i]) - a, int(starts[i + 1]) - a) for i in range(first, ordinal + 1)]
            partial, beyond = _partial_pages(spans, owner[a:b], columns[a:b], head_step, device)
            segments.append(Segment(a, b, tuple(bounds), partial, beyond))
            first = ordinal + 1
    return tuple(segments)


def _partial_pages(
    spans: list[_Span], owner: Ints, columns: Ints, head_step: int, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """See `Segment.partial` and `Segment.beyond`."""
    contexts = np.array([s.context for s in spans])[owner]
    written = contexts[:, None] - columns * PAGE_TOKENS  # slots of the page that hold the sequence's own tokens
    tiles, places = np.nonzero(written < PAGE_TOKENS)
    if not len(tiles):
        return None, None
    heads = np.arange(head_step)
    partial = ((tiles[:, None] * head_step + heads) * TILE_PAGES + places[:, None]).ravel()
    beyond = np.arange(PAGE_TOKENS) >= written[tiles, places][:, None]
    beyond = np.repeat(beyond, head_step, axis=0)
    return torch.from_numpy(partial).to(device), torch.from_numpy(beyond).to(device)
