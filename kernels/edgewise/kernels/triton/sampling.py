"""Draws one token per row on the card, without the host: what `kernels.sample` does for rows with temperature and min_p alone.

A row's logits are cut into blocks of 4096. One program a block leaves its largest logit and the mass relative to that; one
program a row adds the blocks in order of position, finds the block in which the drawn number lies, and the token within it. So a
row's token depends on that row alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096
_UNIT: tl.constexpr = tl.constexpr(2.0**-53)


@triton.jit
def _blocks(
    logits: tl.tensor,
    temperature: tl.tensor,
    maxima: tl.tensor,
    places: tl.tensor,
    masses: tl.tensor,
    vocab: tl.constexpr,
    count: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Grid (blocks, rows): the largest logit (NaN if any is), its first place, the sum of exp((x - largest) / temperature)."""
    part, row = tl.program_id(0), tl.program_id(1)
    at = part * block + tl.arange(0, block)
    x = tl.load(logits + row.to(tl.int64) * vocab + at, mask=at < vocab, other=float("-inf"))
    broken = tl.max((x != x).to(tl.int32), axis=0) > 0
    x = tl.where(x != x, float("-inf"), x)
    largest, first = tl.max(x, axis=0), tl.argmax(x, axis=0, tie_break_left=True)
    heat = tl.load(temperature + row)
    finite = tl.where(largest == float("-inf"), 0.0, largest)
    mass = tl.sum(tl.exp((x - finite) / tl.where(heat > 0, heat, 1.0)), axis=0)
    tl.store(maxima + row * count + part, tl.where(broken, float("nan"), largest))
    tl.store(places + row * count + part, part * block + first)
    tl.store(masses + row * count + part, mass)


@triton.jit
def _uniform(seed: tl.tensor, place: tl.tensor) -> tl.tensor:
    """`kernels.philox.uniform`, float64."""
    zero = tl.zeros((1,), dtype=tl.uint32)
    low = zero + (place & 0xFFFFFFFF).to(tl.uint32)
    high = zero + (place >> 32).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, low, high, zero, zero)
    bits = (first.to(tl.uint64) << 21) ^ (second >> 11).to(tl.uint64)
    return tl.sum(bits.to(tl.int64).to(tl.float64), axis=0) * _UNIT


@triton.jit
def _weights(x: tl.tensor, largest: tl.tensor, heat: tl.tensor, least: tl.tensor) -> tl.tensor:
    """exp((x - largest) / heat), 0 below the share `least` of the largest."""
    scaled = (x - largest) / heat
    border = tl.where(least > 0.0, tl.log(tl.maximum(least, 1e-38)), float("-inf"))
    return tl.where(scaled >= border, tl.exp(scaled), 0.0)


@triton.jit
def _pick(
    logits: tl.tensor,
    temperature: tl.tensor,
    min_p: tl.tensor,
    seeds: tl.tensor,
    offsets: tl.tensor,
    maxima: tl.tensor,
    places: tl.tensor,
    masses: tl.tensor,
    out: tl.tensor,
    vocab: tl.constexpr,
    count: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """One program a row."""
    row = tl.program_id(0)
    part = tl.arange(0, width)
    top = tl.load(maxima + row * count + part, mask=part < count, other=float("-inf"))
    broken = tl.max((top != top).to(tl.int32), axis=0) > 0
    largest = tl.max(tl.where(top != top, float("-inf"), top), axis=0)
    best = tl.argmax(tl.where(top != top, float("-inf"), top), axis=0, tie_break_left=True)
    token = tl.load(places + row * count + best).to(tl.int64)
    heat, least = tl.load(temperature + row), tl.load(min_p + row)
    finite = (largest > float("-inf")) & (largest < float("inf"))
    if (heat > 0.0) & finite & (broken == 0):
        base = logits + row.to(tl.int64) * vocab
        at = tl.arange(0, block)
        sums = tl.load(masses + row * count + part, mask=part < count, other=0.0).to(tl.float64)
        sums *= tl.where(top > float("-inf"), tl.exp((top - largest) / heat), 0.0).to(tl.float64)
        if least > 0.0:
            for index in range(count):
                here = index * block + at
                x = tl.load(base + here, mask=here < vocab, other=float("-inf"))
                sums = tl.where(part == index, tl.sum(_weights(x, largest, heat, least), axis=0).to(tl.float64), sums)
        target = _uniform(tl.load(seeds + row), tl.load(offsets + row)) * tl.sum(sums, axis=0)
        before = tl.cumsum(sums, axis=0)
        # The block in which the target lies; rounding may carry it behind all mass, then it is the last block with any.
        last = tl.max(tl.where(sums > 0.0, part, 0), axis=0)
        chosen = tl.minimum(tl.sum((before <= target).to(tl.int32), axis=0), last)
        rest = target - tl.sum(tl.where(part < chosen, sums, 0.0), axis=0)
        here = chosen * block + at
        x = tl.load(base + here, mask=here < vocab, other=float("-inf"))
        weight = _weights(x, largest, heat, least).to(tl.float64)
        end = tl.max(tl.where(weight > 0.0, at, 0), axis=0)
        place = tl.minimum(tl.sum((tl.cumsum(weight, axis=0) <= rest).to(tl.int32), axis=0), end)
        token = (chosen * block + place).to(tl.int64)
    tl.store(out + row, tl.where(finite & (broken == 0), token, -1))


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    offsets: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Draw a token for each row.

    Args:
        logits: [rows, vocab] float32, contiguous.
        temperature, min_p: [rows] float32, as of `kernels.sample.RowControls`; temperature 0 takes the likeliest token, of
            equal ones the first.
        seeds, offsets: [rows] int64; the number drawn is `philox.uniform(seed, offset)`, seeds unsigned.
        out: [rows] int64 to write to: the tokens, -1 where a logit is NaN or the largest is not finite.

    Raises:
        ValueError: Shapes or dtypes do not agree.
    """
    rows, vocab = logits.shape
    given = (temperature, min_p, seeds, offsets, out)
    if logits.dtype != torch.float32 or not logits.is_contiguous() or any(each.shape != (rows,) for each in given):
        raise ValueError(f"logits must be [{rows}, {vocab}] float32 and contiguous, the others [{rows}]")
    if any(each.dtype != torch.int64 for each in given[2:]):
        raise ValueError("seeds, offsets and out must be int64")
    count = triton.cdiv(vocab, _BLOCK)
    maxima, masses = (torch.empty((rows, count), device=logits.device) for _ in range(2))
    places = torch.empty((rows, count), dtype=torch.int32, device=logits.device)
    if rows:
        _blocks[(count, rows)](logits, temperature, maxima, places, masses, vocab, count, _BLOCK, num_warps=8)
        width = triton.next_power_of_2(count)
        _pick[(rows,)](
            logits, temperature, min_p, seeds, offsets, maxima, places, masses, out, vocab, count, width, _BLOCK, num_warps=8
        )  # fmt: skip
    return out
