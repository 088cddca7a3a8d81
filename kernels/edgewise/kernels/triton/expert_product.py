"""Products of tokens with the matrices of their experts, and the sum of what a token's experts say.

A program computes `block_columns` outputs for a tile of pairs (`routing.Routed`), whose tokens share an expert: it reads that
expert's rows once for them. With one token there are as many tiles as it has experts, each of one row, and nothing is read but
their weights; with a prompt's tokens tiles are full. The chains of additions are those of `decode_product`, so a pair's bits
depend neither on its tile nor on how many there are.

The matrices of all experts lie one below the other in one `Weight`. What each expert says is kept in the weights' dtype, and
`add_experts` or `sum_experts` adds it times its weight in ascending order of experts, as `kernels.experts` does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from edgewise.kernels.triton.blocks import Blocks, Form, block_rows, choose_blocks, fitting, is_float
from edgewise.kernels.triton.chains import float_chains, joined
from edgewise.kernels.triton.decode_product import GROUP, RUN, SLICES, SQUARES, Residual, Weight, check_blocks, gate
from edgewise.kernels.triton.embed import leave_row
from edgewise.kernels.triton.integer_product import integer_chains, round_rows
from edgewise.kernels.triton.launch import capability, shared_memory
from edgewise.kernels.triton.routing import Routed
from edgewise.kernels.triton.sums import squares_of, sum_of_pairs
from edgewise.kernels.triton.wide_product import wide_chains

_FEW = 8  # rows that a matrix instruction takes at least
_ROOM = 160 << 10  # bytes of shared memory from which on the tiles of prompts are twice as high
_BLOCK = 1024
_ACTIVATIONS = ("silu", "gelu_tanh")
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def step_tile_rows(rows: int) -> int:
    """Pairs of a tile in a step of `rows` tokens: an expert has one tile up to 8 tokens, and seldom more than one beyond."""
    return _FEW if rows <= _FEW else 2 * _FEW


def prompt_tile_rows(device: torch.device) -> int:
    """Pairs of a tile in prompts of any length."""
    return 64 if shared_memory(device) >= _ROOM else 32


@triton.jit(do_not_specialize=["rows"])
def _product(
    a: tl.tensor,
    low: tl.tensor,
    steps: tl.tensor,
    masses: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    minima: tl.tensor,
    squares: tl.tensor,
    out: tl.tensor,
    order: tl.tensor,
    tiles: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    shared: tl.constexpr,
    inner: tl.constexpr,
    columns: tl.constexpr,
    matrix_rows: tl.constexpr,
    normed: tl.constexpr,
    activation: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_inner: tl.constexpr,
    slices: tl.constexpr,
    run: tl.constexpr,
    wide: tl.constexpr,
    form: tl.constexpr,
) -> None:
    """Grid (blocks of columns, most tiles). `rows` of activations; pair p takes row p // `shared`, and writes row p of `out`.

    `activation` "" is a plain product; else `columns` are half of the matrix's rows.
    """
    tile = tl.program_id(1)
    if tile >= tl.load(count):
        return
    gated: tl.constexpr = activation != ""
    stored: tl.constexpr = codes.dtype.element_ty
    expert = tl.load(tiles + tile * 3).to(tl.int64)
    at = tl.load(tiles + tile * 3 + 1) + tl.arange(0, block_rows)
    mine = at < tl.load(tiles + tile * 3 + 2)
    pair = tl.load(order + at, mask=mine, other=0).to(tl.int64)
    row = tl.where(mine, pair // shared, rows)
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    codes += expert * (matrix_rows * inner // (2 if stored == tl.uint8 else 1))
    if stored == tl.int8 or stored == tl.uint8:
        scales += expert * (matrix_rows * (inner // 32))
    if stored == tl.uint8:
        minima += expert * (matrix_rows * (inner // 32))
    if wide:
        total, up = wide_chains(a, codes, row, rows, column, columns, inner, gated, block_rows, block_columns)
    elif form == "integers":
        total, up = integer_chains(
            a, low, steps, masses, codes, scales, minima, row, rows, column, columns, matrix_rows, inner, gated,
            block_rows, block_columns, block_inner,
        )  # fmt: skip
    else:
        total, up = float_chains(
            a, codes, scales, minima, row, rows, column, columns, matrix_rows, inner, inner, gated, block_rows,
            block_columns, block_inner, slices, run, form == "ptx",
        )  # fmt: skip
        total = joined(total, block_columns, block_rows)
        up = joined(up, block_columns, block_rows)
    real = column < columns
    if normed:
        square = squares_of(squares, row, rows, inner // 16)
        inverse = (1.0 / tl.sqrt(sum_of_pairs(square, block_rows) / inner + eps))[None, :]
        total *= inverse
        up *= inverse
    if gated:
        total = gate(total, activation) * up
    tl.store(out + pair[None, :] * columns + column[:, None], total, mask=real[:, None] & mine[None, :])


@triton.jit
def _sum(
    parts: tl.tensor,
    experts: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    norm: tl.tensor,
    hidden: tl.constexpr,
    per_token: tl.constexpr,
    adds: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Grid (rows, blocks of a row). `adds`: to the residual stream, of which the next product's inputs are left as well."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * block
    at = first + tl.arange(0, block)
    real = at < hidden
    total = tl.zeros((block,), dtype=tl.float32)
    for place in tl.static_range(per_token):
        pair = row * per_token + place
        there = tl.load(experts + pair) >= 0
        part = tl.load(parts + pair * hidden + at, mask=real & there, other=0.0).to(tl.float32)
        total += part * tl.load(weights + pair)
    if adds:
        total += tl.load(out + row * hidden + at, mask=real, other=0.0)
        leave_row(total, out, scaled, squares, norm, row, first, hidden, block)
    else:
        tl.store(out + row * hidden + at, total, mask=real)


def gated_step(
    r: Residual,
    routed: Routed,
    weight: Weight,
    eps: float,
    out: torch.Tensor,
    activation: str = "silu",
    form: Form = "plain",
) -> torch.Tensor:
    """activation(gate) * up of rms_norm(x) @ W.T for each pair of a token and an expert.

    Args:
        r: The stream; `scaled` holds the weight of this norm.
        routed: Of its rows.
        weight: [experts * 2 * n, hidden]: gate and up of each expert, without bias.
        eps: Added to the mean square.
        out: [T * k, n] to write to, the weights' dtype; rows of padding are left as they are.
        activation: "silu" or "gelu_tanh".
        form: Of rounded weights.

    Raises:
        ValueError: Shapes, dtypes or sizes do not agree.
    """
    return _gated(r.scaled, r.squares, routed, weight, eps, out, activation, form)


def gated_experts(
    a: torch.Tensor,
    routed: Routed,
    weight: Weight,
    out: torch.Tensor,
    activation: str = "silu",
    form: Form = "plain",
) -> torch.Tensor:
    """activation(gate) * up of a @ W.T for each pair of a token and an expert.

    Args:
        a: [T, hidden], normed already.
        Others, raises: As `gated_step`.
    """
    return _gated(a, None, routed, weight, 0.0, out, activation, form)


def down_experts(
    a: torch.Tensor, routed: Routed, weight: Weight, out: torch.Tensor, form: Form = "plain"
) -> torch.Tensor:
    """a @ W.T for each pair of a token and an expert.

    Args:
        a: [T * k, n], as the gated product leaves it.
        weight: [experts * hidden, n], without bias.
        out: [T * k, hidden] to write to, the dtype of `a`.
        routed, form, raises: As `gated_step`.
    """
    _check(a, routed, weight, out, out.shape[1], routed.experts.numel())
    _launch(a, None, routed, weight, 0.0, out, "", 1, form)
    return out


def sum_experts(parts: torch.Tensor, routed: Routed, out: torch.Tensor) -> torch.Tensor:
    """Each token's sum of weight * part over its experts, in ascending order; 0 for padding.

    Args:
        parts: [T * k, hidden], of `down_experts`.
        routed: Of the T tokens.
        out: [T, hidden] float32 to write to.

    Raises:
        ValueError: Shapes or dtypes do not agree.
    """
    _check_parts(parts, routed, out)
    _add_up(parts, routed, out, out, out, out, adds=False)
    return out


def add_experts(parts: torch.Tensor, routed: Routed, r: Residual, norm: torch.Tensor) -> None:
    """x += the sum of `sum_experts`, and what the next norm needs.

    Args:
        r: The stream; changed.
        norm: [hidden] float32, weight of the next norm.
        Others, raises: As `sum_experts`; or hidden is no multiple of 16.
    """
    _check_parts(parts, routed, r.x)
    hidden = r.x.shape[1]
    if hidden % SQUARES or norm.shape != (hidden,) or norm.dtype != torch.float32:
        raise ValueError(f"norm must be [{hidden}] float32 and hidden a multiple of {SQUARES}, got {tuple(norm.shape)}")
    _add_up(parts, routed, r.x, r.scaled, r.squares, norm, adds=True)


def expert_blocks(weight: Weight, shape: tuple[int, int], tile_rows: int, gated: bool, form: Form = "plain") -> Blocks:
    """How a product with a matrix [out, in] of each expert is cut: as in `choose_blocks`, but for the tiles of prompts, of which
    there are many, so that each can have more outputs for one reading of its activations."""
    codes, device = weight.codes.dtype, weight.codes.device
    many = tile_rows > 2 * _FEW
    if many and is_float(codes) and codes.itemsize == 2 and capability(device) == (9, 0):
        return fitting(Blocks(64, 256, 2 if gated else 3, wide=True), tile_rows, gated, device)
    return choose_blocks(codes, shape, tile_rows, gated, device, "plain" if is_float(codes) else form)


def _gated(
    a: torch.Tensor,
    squares: torch.Tensor | None,
    routed: Routed,
    weight: Weight,
    eps: float,
    out: torch.Tensor,
    activation: str,
    form: Form,
) -> torch.Tensor:
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation must be silu or gelu_tanh, got {activation}")
    _check(a, routed, weight, out, 2 * out.shape[1], routed.experts.shape[0])
    _launch(a, squares, routed, weight, eps, out, activation, routed.per_token, form)
    return out


def _check(a: torch.Tensor, routed: Routed, weight: Weight, out: torch.Tensor, outputs: int, rows: int) -> None:
    """`outputs`: rows of one expert's matrix."""
    inner, codes, pairs = weight.columns, weight.codes, routed.experts.numel()
    if a.shape != (rows, inner) or out.dim() != 2 or out.shape[0] != pairs:
        raise ValueError(
            f"activations must be {(rows, inner)} and out [{pairs}, ...], got {tuple(a.shape)}, {tuple(out.shape)}"
        )
    if codes.shape[0] != routed.number * outputs or weight.bias is not None:
        raise ValueError(
            f"a weight must be [{routed.number} * {outputs}, {inner}] without bias, got {tuple(codes.shape)}"
        )
    if not all(each.is_contiguous() for each in (a, out, codes)):
        raise ValueError("activations, out and weight must be contiguous")
    if a.dtype not in _FLOATS or out.dtype != a.dtype or (is_float(codes.dtype) and codes.dtype != a.dtype):
        raise ValueError(
            f"activations and out must share a float type, the weight's if that is one; "
            f"got {a.dtype}, {out.dtype} and {codes.dtype}"
        )
    if is_float(codes.dtype):
        return
    if codes.dtype not in (torch.int8, torch.uint8):
        raise ValueError(f"experts' weights are floats or have 8 or 4 bits by groups, got {codes.dtype}")
    scales = (codes.shape[0], inner // GROUP)
    if weight.scale is None or weight.scale.shape != scales or inner % GROUP:
        raise ValueError(f"a weight of {codes.dtype} needs columns in multiples of {GROUP} and scales {scales}")
    if (codes.dtype == torch.uint8) != (weight.minimum is not None):
        raise ValueError(f"minima are for 4 bits, got {codes.dtype}")


def _check_parts(parts: torch.Tensor, routed: Routed, out: torch.Tensor) -> None:
    size = (routed.experts.shape[0], parts.shape[-1])
    if parts.shape != (routed.experts.numel(), size[1]) or out.shape != size or out.dtype != torch.float32:
        raise ValueError(
            f"parts must be [{routed.experts.numel()}, hidden] and the sum {size} float32, "
            f"got {tuple(parts.shape)} and {tuple(out.shape)} {out.dtype}"
        )
    if not (parts.is_contiguous() and out.is_contiguous()):
        raise ValueError("parts and their sum must be contiguous")


def _launch(
    a: torch.Tensor,
    squares: torch.Tensor | None,
    routed: Routed,
    weight: Weight,
    eps: float,
    out: torch.Tensor,
    activation: str,
    shared: int,
    form: Form,
) -> None:
    codes, inner, columns = weight.codes, weight.columns, out.shape[1]
    matrix_rows = 2 * columns if activation else columns
    blocks = expert_blocks(weight, (matrix_rows, inner), routed.tile_rows, bool(activation), form)
    check_blocks(blocks, weight, a.dtype)
    inputs = (a, a, a, a)
    if blocks.form == "integers":
        x = round_rows(a, paired=codes.dtype == torch.uint8, overlapped=False)
        inputs = (x.high, x.low, x.step, x.mass)
    many = blocks.wide and activation
    _product[(triton.cdiv(columns, blocks.columns), routed.tiles.shape[0])](
        *inputs,
        codes,
        a if weight.scale is None else weight.scale,
        a if weight.minimum is None else weight.minimum,
        a if squares is None else squares,
        out,
        routed.order,
        routed.tiles,
        routed.count,
        a.shape[0],
        eps,
        shared,
        inner,
        columns,
        matrix_rows,
        squares is not None,
        activation,
        block_rows(routed.tile_rows),
        blocks.columns,
        blocks.inner,
        SLICES,
        RUN,
        blocks.wide,
        blocks.form,
        num_warps=8 if many or (blocks.form == "integers" and routed.tile_rows > 2 * _FEW) else SLICES,
        num_stages=blocks.stages,
        enable_fp_fusion=False,  # which products and sums are joined would depend on the blocks
    )


def _add_up(
    parts: torch.Tensor,
    routed: Routed,
    out: torch.Tensor,
    scaled: torch.Tensor,
    squares: torch.Tensor,
    norm: torch.Tensor,
    *,
    adds: bool,
) -> None:
    rows, hidden = out.shape
    block = min(_BLOCK, triton.next_power_of_2(hidden))
    _sum[(rows, triton.cdiv(hidden, block))](
        parts, routed.experts, routed.weights, out, scaled, squares, norm, hidden, routed.per_token, adds, block,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
