"""Routing of tokens to experts on the card: which experts each token goes through, and the tokens of each expert in tiles.

Nothing here waits for the host, and no launch depends on what was chosen: there are as many tiles as there can be at most, their
number stands on the card, and programs of those that are not there end at once. So a graph can hold it all.

A token's choice depends on its own logits alone: the order in which shares are added is written out (`sum_of_pairs`), and among
equal shares the first expert wins, as in `kernels.experts.route`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from edgewise.kernels.limits import MAX_EXPERTS
from edgewise.kernels.triton.blocks import block_rows
from edgewise.kernels.triton.sums import sum_of_pairs

MOST_TOGETHER = 64
"""Tokens that one launch routes and groups; more take a launch that counts and one that groups."""
_BLOCK_ROWS = 16
_LEAST_EXPERTS = 16  # of a block: of 4 or 8 beside few rows Triton 3.6 makes a layout that its own verifier refuses
_TILE = 3  # numbers that a tile is described by


@dataclass(frozen=True, slots=True)
class Routed:
    """Where T tokens go, k experts each, and a token and one of its experts are a pair: number token * k + its place there.

    Attributes:
        experts: [T, k] int32, ascending; -1 where a row is padding.
        weights: [T, k] float32; 0 where a row is padding.
        order: [T * k] int32: pairs, expert by expert and within one by token; what padding left over is undefined.
        tiles: [tiles, 3] int32: expert, and first and end of a run of `order` of `tile_rows` pairs at most.
        count: [1] int32: how many of them there are; those beyond are undefined.
        tile_rows: Most pairs of a tile.
        number: Experts in all.
    """

    experts: torch.Tensor
    weights: torch.Tensor
    order: torch.Tensor
    tiles: torch.Tensor
    count: torch.Tensor
    tile_rows: int
    number: int

    @property
    def per_token(self) -> int:
        return self.experts.shape[1]


@triton.jit
def _group(
    chosen: tl.tensor,
    pair: tl.tensor,
    before: tl.tensor,
    total: tl.tensor,
    order: tl.tensor,
    tiles: tl.tensor,
    count: tl.tensor,
    tile_rows: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write the pairs of a block of rows into `order`, and the tiles that begin with one of them.

    Args:
        chosen: [block_rows, block of experts] int32, 1 where a row goes to an expert.
        pair: As many, their numbers.
        before, total: [block] int32: rows of each expert in earlier blocks, and in all.
    """
    at = tl.arange(0, block)
    rank = tl.cumsum(chosen, axis=0) - chosen + before[None, :]
    first = tl.cumsum(total, axis=0) - total
    own = (total + (tile_rows - 1)) // tile_rows
    begin = first[None, :] + rank
    tl.store(order + begin, pair, mask=chosen > 0)
    tile = tiles + ((tl.cumsum(own, axis=0) - own)[None, :] + rank // tile_rows) * 3
    opens = (chosen > 0) & (rank % tile_rows == 0)
    tl.store(tile, tl.broadcast_to(at[None, :], (block_rows, block)), mask=opens)
    tl.store(tile + 1, begin, mask=opens)
    tl.store(tile + 2, tl.minimum(begin + tile_rows, (first + total)[None, :]), mask=opens)
    if tl.program_id(0) == 0:
        tl.store(count, tl.sum(own, axis=0))


@triton.jit(do_not_specialize=["rows"])
def _route(
    logits: tl.tensor,
    slots: tl.tensor,
    experts: tl.tensor,
    weights: tl.tensor,
    counts: tl.tensor,
    order: tl.tensor,
    tiles: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    number: tl.constexpr,
    per_token: tl.constexpr,
    normalised: tl.constexpr,
    tile_rows: tl.constexpr,
    together: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Grid (blocks of rows): one if `together`, which groups as well; else rows of each of `number` experts go to `counts`."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    at = tl.arange(0, block)
    inside = (at < number)[None, :]
    present = row < rows
    real = present & (tl.load(slots + row, mask=present, other=-1) >= 0)
    value = tl.load(
        logits + row.to(tl.int64)[:, None] * number + at[None, :], mask=present[:, None] & inside, other=float("-inf")
    ).to(tl.float32)
    power = tl.where(inside, tl.exp(value - tl.max(value, axis=1)[:, None]), 0.0)
    share = power / sum_of_pairs(power, block_rows)[:, None]
    # Shares that are NaN come first, like in a sort: such a token gets the first experts, and NaN.
    key = tl.where(inside, tl.where(share == share, share, 2.0), -1.0)
    for _ in tl.static_range(per_token):
        likeliest = key == tl.max(key, axis=1)[:, None]
        pick = tl.min(tl.where(likeliest, at[None, :], block), axis=1)
        key = tl.where(at[None, :] == pick[:, None], -1.0, key)
    taken = inside & (key < 0.0)
    if normalised:
        share /= sum_of_pairs(tl.where(taken, share, 0.0), block_rows)[:, None]
    taken = taken & real[:, None]
    chosen = taken.to(tl.int32)
    pair = row[:, None] * per_token + tl.cumsum(chosen, axis=1) - chosen
    tl.store(experts + pair, tl.broadcast_to(at[None, :], (block_rows, block)), mask=taken)
    tl.store(weights + pair, share, mask=taken)
    padding = present & (real == 0)
    for place in tl.static_range(per_token):
        tl.store(experts + row * per_token + place, -1, mask=padding)
        tl.store(weights + row * per_token + place, 0.0, mask=padding)
    total = tl.sum(chosen, axis=0)
    if together:
        before = tl.zeros((block,), dtype=tl.int32)
        _group(chosen, pair, before, total, order, tiles, count, tile_rows, block_rows, block)
    else:
        tl.store(counts + tl.program_id(0) * number + at, total, mask=at < number)


@triton.jit(do_not_specialize=["rows"])
def _place(
    experts: tl.tensor,
    before: tl.tensor,
    totals: tl.tensor,
    order: tl.tensor,
    tiles: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    number: tl.constexpr,
    per_token: tl.constexpr,
    tile_rows: tl.constexpr,
    block_rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Grid (blocks of rows): groups what `_route` chose; `before` [blocks, number] and `totals` [number] add up its counts."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    at = tl.arange(0, block)
    chosen = tl.zeros((block_rows, block), dtype=tl.int32)
    for place in tl.static_range(per_token):
        own = tl.load(experts + row * per_token + place, mask=row < rows, other=-1)
        chosen += (own[:, None] == at[None, :]).to(tl.int32)
    pair = row[:, None] * per_token + tl.cumsum(chosen, axis=1) - chosen
    earlier = tl.load(before + tl.program_id(0) * number + at, mask=at < number, other=0)
    total = tl.load(totals + at, mask=at < number, other=0)
    _group(chosen, pair, earlier, total, order, tiles, count, tile_rows, block_rows, block)


def most_tiles(rows: int, per_token: int, experts: int, tile_rows: int) -> int:
    """As many tiles as `rows` tokens can fill: every expert that has any ends with one that may not be full."""
    pairs = rows * per_token
    active = min(experts, pairs)
    return active + (pairs - active) // tile_rows


def route_tokens(
    logits: torch.Tensor, slots: torch.Tensor, per_token: int, *, normalised: bool, tile_rows: int
) -> Routed:
    """The `per_token` likeliest experts of each token, their probabilities, and the tokens of each expert.

    Args:
        logits: [T, experts] floating point, contiguous.
        slots: [T] int64; negative for rows that are padding, which go nowhere.
        per_token: Experts per token, 1 to experts.
        normalised: Whether the chosen probabilities are scaled to a sum of 1.
        tile_rows: Tokens of one expert that a product takes together; it changes no bit of anything.

    Raises:
        ValueError: Shapes do not agree, or there are more than 512 experts.
    """
    rows, number = logits.shape if logits.dim() == 2 else (0, 0)
    if not 1 <= per_token <= number <= MAX_EXPERTS or not logits.is_contiguous() or rows == 0:
        raise ValueError(
            f"logits must be [T >= 1, {per_token} to {MAX_EXPERTS} experts], contiguous, with per_token >= 1, "
            f"got {tuple(logits.shape)}"
        )
    if slots.shape != (rows,) or slots.dtype != torch.int64 or tile_rows < 1:
        raise ValueError(f"slots must be [{rows}] int64 and tile_rows positive, got {tuple(slots.shape)}, {tile_rows}")
    together = rows <= MOST_TOGETHER
    own_rows = block_rows(rows) if together else _BLOCK_ROWS
    blocks = triton.cdiv(rows, own_rows)

    def integers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=logits.device)

    experts, order, count = integers(rows, per_token), integers(rows * per_token), integers(1)
    tiles = integers(most_tiles(rows, per_token, number, tile_rows), _TILE)
    weights = torch.empty((rows, per_token), device=logits.device)
    counts = count if together else integers(blocks, number)
    block = max(_LEAST_EXPERTS, triton.next_power_of_2(number))
    warps = 8 if own_rows * block > 4096 else 4
    _route[(blocks,)](
        logits, slots, experts, weights, counts, order, tiles, count, rows, number, per_token, normalised, tile_rows,
        together, own_rows, block, num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
    if not together:
        before = counts.cumsum(0, dtype=torch.int32) - counts
        totals = counts.sum(0, dtype=torch.int32)
        _place[(blocks,)](
            experts, before, totals, order, tiles, count, rows, number, per_token, tile_rows, own_rows, block,
            num_warps=warps,
        )  # fmt: skip
    return Routed(experts, weights, order, tiles, count, tile_rows, number)
