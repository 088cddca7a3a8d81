"""Tiled attention with one exact maximum per row; see `attention_plan` for the order of tiles."""

from __future__ import annotations

import math

import torch

from edgewise.kernels.limits import TILE_TOKENS
from edgewise.kernels.paging import KVLayer
from edgewise.kernels.reference.attention_plan import AttentionPlan, Group, Segment, Shape
from edgewise.kernels.reference.scratch import Scratch
from edgewise.kernels.reference.softcap import softcap_
from edgewise.kernels.row_sum import row_sum
from edgewise.kernels.tile_product import tile_product


def attention(
    q: torch.Tensor, kv: KVLayer, plan: AttentionPlan, scale: float, softcap: float | None = None
) -> torch.Tensor:
    shape = plan.shape
    out = torch.zeros((q.shape[0], shape.kv_heads, shape.group, shape.head_dim), dtype=torch.float32, device=q.device)
    for group in plan.groups:
        queries = _group_queries(q, group, shape, scale)
        for head in range(0, shape.kv_heads, group.head_step):
            heads = slice(head, head + group.head_step)
            result = _attend(queries[:, heads], kv, group, head, plan.scratch, softcap)
            out[:, heads].index_copy_(0, group.token_rows, _token_order(result, group, shape))
    return out.view(q.shape).to(q.dtype)


def _group_queries(q: torch.Tensor, group: Group, shape: Shape, scale: float) -> torch.Tensor:
    """[sequences, kv_heads, rows, head_dim] float32, scaled, padded with zeros."""
    rows = group.tokens * shape.group
    picked = q.index_select(0, group.token_rows).float()
    picked = picked.view(group.sequences, group.tokens, shape.kv_heads, shape.group, shape.head_dim).transpose(1, 2)
    size = (group.sequences, shape.kv_heads, group.rows, shape.head_dim)
    padded = torch.empty(size, device=q.device) if rows == group.rows else torch.zeros(size, device=q.device)
    target = padded[:, :, :rows].view(*size[:2], group.tokens, shape.group, shape.head_dim)
    torch.mul(picked, scale, out=target)
    return padded


def _token_order(result: torch.Tensor, group: Group, shape: Shape) -> torch.Tensor:
    """[sequences, heads, rows, head_dim] -> [sequences * tokens, heads, group, head_dim]."""
    heads = result.shape[1]
    valid = result[:, :, : group.tokens * shape.group]
    valid = valid.reshape(group.sequences, heads, group.tokens, shape.group, shape.head_dim).transpose(1, 2)
    return valid.reshape(-1, heads, shape.group, shape.head_dim)


def _attend(
    queries: torch.Tensor, kv: KVLayer, group: Group, head: int, scratch: Scratch, softcap: float | None
) -> torch.Tensor:
    """Queries [sequences, heads, rows, head_dim] -> results of the same shape."""
    weights = _scores(queries, kv, group, head, scratch)
    if softcap is not None:
        softcap_(weights, softcap)
    weights[group.mask_from :].masked_fill_(group.masked, -math.inf)
    largest = weights.amax(dim=-1)
    top = largest[: group.sequences].clone()
    for first, last in _later_ordinals(group):
        torch.maximum(top[: last - first], largest[first:last], out=top[: last - first])
    weights.sub_(_per_tile(top, group).unsqueeze(-1)).exp_()
    sums = row_sum(weights)
    total = sums[: group.sequences].clone()
    for first, last in _later_ordinals(group):
        total[: last - first] += sums[first:last]
    return _weighted_values(weights, kv, group, head, scratch).div_(total.unsqueeze(-1))


def _scores(queries: torch.Tensor, kv: KVLayer, group: Group, head: int, scratch: Scratch) -> torch.Tensor:
    """[tiles, heads, rows, TILE_TOKENS] float32, not masked yet."""
    _, heads, rows, head_dim = queries.shape
    size = (group.tiles, heads, rows, TILE_TOKENS)
    scores = scratch.take("scores", size, torch.float32, queries.device)
    per_tile = _per_tile(queries, group)
    for segment in group.segments:
        keys = _gather(kv.k, group, segment, head, scratch).view(-1, TILE_TOKENS, head_dim)
        part = per_tile if per_tile.shape[0] == 1 else per_tile[segment.first : segment.last]
        part = part.expand(segment.last - segment.first, -1, -1, -1).reshape(-1, rows, head_dim)
        target = scores[segment.first : segment.last]
        tile_product(part, keys.transpose(1, 2), out=target.view(-1, rows, TILE_TOKENS))
        if kv.k_scale is not None:
            target.mul_(_gather_scales(kv.k_scale, group, segment, head))
    return scores


def _weighted_values(weights: torch.Tensor, kv: KVLayer, group: Group, head: int, scratch: Scratch) -> torch.Tensor:
    """Sum of weight x value per row, tile by tile in order: [sequences, heads, rows, head_dim]."""
    _, heads, rows, _ = weights.shape
    head_dim = kv.v.shape[3]
    result = torch.zeros((group.sequences, heads, rows, head_dim), device=weights.device)
    for segment in group.segments:
        values = _gather(kv.v, group, segment, head, scratch)
        part = weights[segment.first : segment.last]
        if kv.v_scale is not None:
            part.mul_(_gather_scales(kv.v_scale, group, segment, head))
        if kv.v.is_floating_point() and segment.partial is not None and segment.beyond is not None:
            own = values.index_select(0, segment.partial).masked_fill_(segment.beyond.unsqueeze(-1), 0.0)
            values.index_copy_(0, segment.partial, own)
        sums = tile_product(part.view(-1, rows, TILE_TOKENS), values.view(-1, TILE_TOKENS, head_dim))
        sums = sums.view(-1, heads, rows, head_dim)
        for first, last in segment.ordinals:
            result[: last - first] += sums[first:last]
    return result


def _gather(pages: torch.Tensor, group: Group, segment: Segment, head: int, scratch: Scratch) -> torch.Tensor:
    """[tiles * heads * TILE_PAGES, PAGE_TOKENS, head_dim] float32, a copy."""
    rows = _segment_pages(group, segment, head)
    size = (rows.shape[0], *pages.shape[2:])
    values = scratch.take("values", size, torch.float32, pages.device)
    if pages.dtype == torch.float32:
        return torch.index_select(pages.flatten(0, 1), 0, rows, out=values)
    if pages.dtype.itemsize == 1:  # bytes can be gathered in any version of torch, fp8 numbers not on every device
        stored = scratch.take("stored", size, torch.uint8, pages.device)
        torch.index_select(pages.view(torch.uint8).flatten(0, 1), 0, rows, out=stored)
        return values.copy_(stored.view(pages.dtype))
    stored = scratch.take("stored", size, pages.dtype, pages.device)
    return values.copy_(torch.index_select(pages.flatten(0, 1), 0, rows, out=stored))


def _gather_scales(scales: torch.Tensor, group: Group, segment: Segment, head: int) -> torch.Tensor:
    """[tiles, heads, 1, TILE_TOKENS] float32; 0 beyond the context."""
    picked = scales.flatten(0, 1).index_select(0, _segment_pages(group, segment, head))
    if segment.partial is not None and segment.beyond is not None:
        own = picked.index_select(0, segment.partial).masked_fill_(segment.beyond, 0.0)
        picked.index_copy_(0, segment.partial, own)
    return picked.view(segment.last - segment.first, group.head_step, 1, TILE_TOKENS)


def _segment_pages(group: Group, segment: Segment, head: int) -> torch.Tensor:
    per_tile = group.pages.shape[0] // group.tiles
    pages = group.pages[segment.first * per_tile : segment.last * per_tile]
    return pages if head == 0 else pages + head


def _per_tile(per_sequence: torch.Tensor, group: Group) -> torch.Tensor:
    """Repeat [sequences, ...] for the tiles [tiles, ...]; left alone where broadcasting does it."""
    return per_sequence if group.owner is None else per_sequence.index_select(0, group.owner)


def _later_ordinals(group: Group) -> list[tuple[int, int]]:
    bounds, first = [], group.counts[0]
    for count in group.counts[1:]:
        bounds.append((first, first + count))
        first += count
    return bounds
