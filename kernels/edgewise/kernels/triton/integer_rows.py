"""Products of rounded weights with a few rows as integers, without matrix instructions: a thread multiplies codes as they come
from memory, four at a time (dp4a), and no weight passes through shared memory.

A lane has one of the sixteen groups of a step of 512 columns, so sixteen lanes read what lies side by side. What is computed is
what `integer_product` computes: exact sums of groups, and sixteen running sums of float32, in the same order, so a row has the
same bits here and there. Every tensor is [16 groups, outputs of a tile]; tiles and rows are tuples of them, so that nothing has
to change its place between threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgewise.kernels.triton.narrow import products_of_4


@triton.jit
def _fours(x: tl.tensor) -> tl.tuple:
    """[groups, lanes, 4] -> four of [groups, lanes]."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _words(
    x: tl.tensor, line: tl.tensor, group: tl.tensor, inner: tl.constexpr, each: tl.constexpr, masked: tl.constexpr
) -> tl.tuple:
    """`each` words of four bytes of every group; `x` is a matrix of bytes."""
    at = line[None, :, None] * (inner // 32 * each) + group[:, None, None] * each + tl.arange(0, 4)[None, None, :]
    words = x.to(tl.pointer_type(tl.int32))
    real = (group < inner // 32)[:, None, None]
    found = _fours(tl.load(words + at, mask=real, other=0) if masked else tl.load(words + at))
    if each == 8:
        found += _fours(tl.load(words + at + 4, mask=real, other=0) if masked else tl.load(words + at + 4))
    return found


@triton.jit
def _factors(x: tl.tensor, line: tl.tensor, group: tl.tensor, inner: tl.constexpr, masked: tl.constexpr) -> tl.tensor:
    """One number of each group, [groups, lanes]."""
    at = line[None, :] * (inner // 32) + group[:, None]
    real = (group < inner // 32)[:, None]
    return tl.load(x + at, mask=real, other=0.0) if masked else tl.load(x + at)


@triton.jit
def stored_steps(
    codes: tl.tensor,
    scales: tl.tensor,
    minima: tl.tensor,
    lines: tl.tuple,
    first: tl.tensor,
    inner: tl.constexpr,
    steps: tl.constexpr,
) -> tl.tuple:
    """Of each tile, and of each of so many steps from column `first` on: the weight's words, scales, minima."""
    masked: tl.constexpr = inner % (steps * 512) != 0
    four_bits: tl.constexpr = codes.dtype.element_ty == tl.uint8
    found = ()
    for tile in tl.static_range(len(lines)):
        own = ()
        for step in tl.static_range(steps):
            group = first // 32 + step * 16 + tl.arange(0, 16)
            words = _words(codes, lines[tile], group, inner, 4 if four_bits else 8, masked)
            scale = _factors(scales, lines[tile], group, inner, masked)
            least = _factors(minima, lines[tile], group, inner, masked) if four_bits else scale
            own += ((words, scale, least),)  # type: ignore[assignment]
        found += (own,)  # type: ignore[assignment]
    return found


@triton.jit
def _word(words: tl.tuple, at: tl.constexpr, four_bits: tl.constexpr) -> tl.tensor:
    """Four columns of a group, from 4 `at` on, as bytes."""
    return (words[at % 4] >> (at // 4 * 4)) & 0x0F0F0F0F if four_bits else words[at]


@triton.jit
def _sum_of(words: tl.tuple, given: tl.tuple, first: tl.constexpr, four_bits: tl.constexpr) -> tl.tensor:
    """Of sixteen columns of a group: a chain of four, as each waits for the one before."""
    exact = tl.zeros(given[0].shape, dtype=tl.int32)
    for at in tl.static_range(4):
        exact = products_of_4(_word(words, first + at, four_bits), given[first + at], exact)
    return exact


@triton.jit
def _add_steps(
    totals: tl.tuple,
    stored: tl.tuple,
    high: tl.tensor,
    low: tl.tensor,
    units: tl.tensor,
    masses: tl.tensor,
    rows: tl.tensor,
    first: tl.tensor,
    inner: tl.constexpr,
    steps: tl.constexpr,
    block_rows: tl.constexpr,
    lanes: tl.constexpr,
    four_bits: tl.constexpr,
) -> tl.tuple:
    """totals[tile][row] plus the products of steps, one after the other."""
    masked: tl.constexpr = inner % (steps * 512) != 0
    same = tl.zeros((lanes,), dtype=tl.int32)
    for step in tl.static_range(steps):
        group = first // 32 + step * 16 + tl.arange(0, 16)
        after = ()
        for row in tl.static_range(block_rows):
            line = same + tl.minimum(row, rows - 1)
            coarse = _words(high, line, group, inner, 8, masked)
            fine = _words(low, line, group, inner, 8, masked)
            unit = _factors(units, line, group, inner, masked)
            mass = _factors(masses, line, group, inner, masked) if four_bits else unit
            for tile in tl.static_range(len(stored)):
                words, scale, least = stored[tile][step]
                exact = _sum_of(words, coarse, 0, four_bits) + _sum_of(words, coarse, 4, four_bits)
                exact = exact * 254 + (_sum_of(words, fine, 0, four_bits) + _sum_of(words, fine, 4, four_bits))
                total = tl.fma(exact.to(tl.float32), scale.to(tl.float32) * unit, totals[row * len(stored) + tile])
                if four_bits:
                    total = tl.fma(least.to(tl.float32), mass, total)
                after += (total,)  # type: ignore[assignment]
        totals = after
    return totals


@triton.jit
def _joined(x: tl.tensor, lanes: tl.constexpr) -> tl.tensor:
    """[16, lanes] -> [lanes], in pairs of neighbours."""
    x = tl.sum(tl.reshape(x, (8, 2, lanes)), axis=1)
    x = tl.sum(tl.reshape(x, (4, 2, lanes)), axis=1)
    x = tl.sum(tl.reshape(x, (2, 2, lanes)), axis=1)
    return tl.sum(x, axis=0)


@triton.jit
def _assembled(
    totals: tl.tuple,
    first: tl.constexpr,
    each: tl.constexpr,
    tiles: tl.constexpr,
    rows: tl.constexpr,
    lanes: tl.constexpr,
) -> tl.tensor:
    """[tiles * lanes, rows] of the tiles from `first` on, of `each` for a row."""
    column, row = tl.arange(0, tiles * lanes), tl.arange(0, rows)
    whole = tl.zeros((tiles * lanes, rows), dtype=tl.float32)
    for own in tl.static_range(rows):
        for tile in tl.static_range(tiles):
            sums = _joined(totals[own * each + first + tile], lanes)
            wide = tl.reshape(tl.broadcast_to(sums[None, :], (tiles, lanes)), (tiles * lanes,))
            whole = tl.where((column // lanes == tile)[:, None] & (row == own)[None, :], wide[:, None], whole)
    return whole


@triton.jit
def lines_of(
    first: tl.tensor,
    columns: tl.constexpr,
    gated: tl.constexpr,
    block_columns: tl.constexpr,
    lanes: tl.constexpr,
) -> tl.tuple:
    """The rows of a weight that a program multiplies, tile by tile, those of gates first; beyond the last that one again."""
    found = ()
    for tile in tl.static_range(block_columns // lanes):
        found += (tl.minimum(first + tile * lanes + tl.arange(0, lanes), columns - 1).to(tl.int64),)  # type: ignore[assignment]
    if gated:
        for tile in tl.static_range(block_columns // lanes):
            found += (found[tile] + columns,)  # type: ignore[assignment]
    return found


@triton.jit
def few_rows(
    now: tl.tuple,
    high: tl.tensor,
    low: tl.tensor,
    units: tl.tensor,
    masses: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    minima: tl.tensor,
    lines: tl.tuple,
    rows: tl.tensor,
    inner: tl.constexpr,
    gated: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    lanes: tl.constexpr,
    steps: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Sums [block_columns, block_rows] of gate and up, or of a plain product twice.

    `now`: the first `steps` steps of the weight, which may be loaded before activations are there. While some steps are
    multiplied the next ones are on their way.
    """
    four_bits: tl.constexpr = codes.dtype.element_ty == tl.uint8
    size: tl.constexpr = 512 * steps
    blocks: tl.constexpr = (inner + size - 1) // size
    tiles: tl.constexpr = block_columns // lanes
    each: tl.constexpr = 2 * tiles if gated else tiles
    totals = ()
    for _ in tl.static_range(block_rows * each):
        totals += (tl.zeros((16, lanes), dtype=tl.float32),)  # type: ignore[assignment]
    for block in range(1, blocks):
        ahead = stored_steps(codes, scales, minima, lines, block * size, inner, steps)
        totals = _add_steps(
            totals, now, high, low, units, masses, rows, (block - 1) * size, inner, steps, block_rows, lanes, four_bits
        )  # fmt: skip
        now = ahead
    totals = _add_steps(
        totals, now, high, low, units, masses, rows, (blocks - 1) * size, inner, steps, block_rows, lanes, four_bits
    )  # fmt: skip
    total = _assembled(totals, 0, each, tiles, block_rows, lanes)
    up = _assembled(totals, tiles, each, tiles, block_rows, lanes) if gated else total
    return total, up
