"""Products of a few activation rows with a weight, for decoding: bound by the weight's bytes, which are read once.

A program computes `block_columns` outputs of all rows over the whole inner dimension, so there is nothing to be joined
afterwards. The inner dimension is dealt in runs of 64 elements to four warps, whose chains of matrix instructions run abreast
(one chain of them, each waiting for the last, would take longer than the weight's bytes). The weight is the left factor of the
instructions; each output is four chains, sixteen elements a link, and their sum, whatever the block sizes. So a row's bits depend
neither on its neighbours nor on how many rows a batch has.

Norms are deferred. rms_norm(x) @ W.T equals ((x * norm) @ W.T) / rms(x): the kernels that change the residual stream, `add`
here and `embed.embed`, leave x * norm rounded to the weights' dtype and sums of squares of 16 elements each, and the product
divides at its end. So a decoder's layer has no kernel for its norms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from edgewise.kernels.triton.blocks import (
    COLUMNS_FP8,
    FEW_ROWS,
    STEP_4BIT,
    STEP_FP8,
    Blocks,
    block_rows,
    choose_blocks,
    is_float,
)
from edgewise.kernels.triton.chains import activations, float_chains, joined, places, stored_codes
from edgewise.kernels.triton.fp8_product import native_sums
from edgewise.kernels.triton.fp8_product import round_rows as round_to_fp8
from edgewise.kernels.triton.integer_product import integer_chains, round_rows
from edgewise.kernels.triton.integer_rows import few_rows, lines_of, stored_steps
from edgewise.kernels.triton.launch import LINE_BYTES, begin, dot, fetch_rows
from edgewise.kernels.triton.sums import squares_of, sum_of_pairs, sums_of_16
from edgewise.kernels.triton.wide_product import wide_chains

MAX_ROWS = 64
GROUP = 32  # columns of a row that share a scale
SLICES, RUN = 4, 64
SQUARES = 16  # elements of the residual stream whose squares are summed before they are stored
__all__ = ["GROUP", "MAX_ROWS", "SQUARES", "Blocks", "Residual", "Weight", "add", "gated", "plain", "project"]

_UNGATED = ("project", "add", "plain")
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [out, in] on the card.

    Attributes:
        codes: [out, in] bfloat16, float16, float32, int8 or float8_e4m3fn; or uint8 [out, in / 2], 4-bit numbers in the order of
            GGUF: byte j of a group of 32 columns holds column j (low) and column j + 16 (high).
        scale: int8 and 4 bits: [out, in / 32] float16; fp8: [out] float32, and activations are rounded to fp8 too, row by row
            (`kernels.fp8_linear`).
        minimum: 4 bits: [out, in / 32] float16; the value is code * scale + minimum.
        bias: [out], the activations' dtype, or None.
    """

    codes: torch.Tensor
    scale: torch.Tensor | None = None
    minimum: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def columns(self) -> int:
        """Columns of the matrix: the inner dimension of a product."""
        return self.codes.shape[1] * (2 if self.codes.dtype == torch.uint8 else 1)


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual stream between two products.

    Attributes:
        x: [rows, hidden] float32.
        scaled: [rows, hidden], the weights' dtype: x times the weight of the norm that comes next.
        squares: [rows, hidden / 16] float32, sums of squares of x.
    """

    x: torch.Tensor
    scaled: torch.Tensor
    squares: torch.Tensor

    @classmethod
    def empty(cls, rows: int, hidden: int, dtype: torch.dtype, device: torch.device) -> Residual:
        return cls(
            torch.empty((rows, hidden), device=device),
            torch.empty((rows, hidden), dtype=dtype, device=device),
            torch.empty((rows, hidden // SQUARES), device=device),
        )


@triton.jit
def gate(x: tl.tensor, activation: tl.constexpr) -> tl.tensor:
    """silu, or gelu by tanh."""
    inner = x
    if activation == "gelu_tanh":
        inner = 1.5957691216057308 * (x + 0.044715 * x * x * x)  # 2 sqrt(2 / pi); (1 + tanh(y)) / 2 = sigmoid(2 y)
    return x * tl.sigmoid(inner)


@triton.jit
def _leave_stream(
    x: tl.tensor,
    out: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    norm: tl.tensor,
    column: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    columns: tl.constexpr,
    block_columns: tl.constexpr,
    block_rows: tl.constexpr,
) -> None:
    """Store the residual stream [block_columns, block_rows], and what the next product needs of it."""
    mask = (column < columns)[:, None] & (row < rows)[None, :]
    target = row[None, :] * columns + column[:, None]
    tl.store(out + target, x, mask=mask)
    weight = tl.load(norm + column, mask=column < columns, other=0.0)[:, None]
    tl.store(scaled + target, x * weight, mask=mask)
    groups: tl.constexpr = block_columns // 16
    group = tl.program_id(0) * groups + tl.arange(0, groups)
    mask = (group < columns // 16)[:, None] & (row < rows)[None, :]
    place = row[None, :] * (columns // 16) + group[:, None]
    tl.store(squares + place, sums_of_16(x * x, groups, block_rows), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _product(
    a: tl.tensor,
    low: tl.tensor,
    steps: tl.tensor,
    masses: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    minima: tl.tensor,
    bias: tl.tensor,
    squares: tl.tensor,
    out: tl.tensor,
    scaled: tl.tensor,
    norm: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    inner: tl.constexpr,
    columns: tl.constexpr,
    matrix_rows: tl.constexpr,
    kind: tl.constexpr,
    biased: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_inner: tl.constexpr,
    slices: tl.constexpr,
    run: tl.constexpr,
    held: tl.constexpr,
    wide: tl.constexpr,
    form: tl.constexpr,
    fetched_lines: tl.constexpr,
    overlapped: tl.constexpr,
    steps_ahead: tl.constexpr,
    lanes: tl.constexpr,
) -> None:
    """`kind`: "project", "add", "plain", or the activation of a gated product, whose `columns` are half of the matrix's rows.

    `a`, where integers are multiplied also `low`, `steps` and `masses`, and beside weights in fp8 `steps`, are the activations.
    """
    normed: tl.constexpr = kind != "add" and kind != "plain"
    gated: tl.constexpr = normed and kind != "project"
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    row = tl.arange(0, block_rows)
    if held > 0:
        held_at = places(inner - held, held // slices, slices, run)
        held_codes = stored_codes(codes, column, columns, held_at, inner)
        if gated:
            held_up = stored_codes(codes, column + columns, matrix_rows, held_at, inner)
    if steps_ahead > 0:
        lines = lines_of(tl.program_id(0) * block_columns, columns, gated, block_columns, lanes)
        ahead = stored_steps(codes, scales, minima, lines, 0, inner, steps_ahead)
    if fetched_lines > 0:
        line_bytes: tl.constexpr = inner * codes.dtype.element_ty.primitive_bitwidth // 8
        row_bytes: tl.constexpr = line_bytes // 2 if codes.dtype.element_ty == tl.uint8 else line_bytes
        fetch_rows(codes, tl.minimum(column, columns - 1), row_bytes, fetched_lines)
        if gated:
            fetch_rows(codes, tl.minimum(column, columns - 1) + columns, row_bytes, fetched_lines)
    begin(overlapped)
    real = column < columns
    mask = real[:, None] & (row < rows)[None, :]
    target = row[None, :] * columns + column[:, None]
    # Few rows: what the end needs is asked for now, and comes while the products are computed.
    early: tl.constexpr = block_rows <= 16
    if early:
        if kind == "add":
            before = tl.load(out + target, mask=mask, other=0.0)
        elif normed:
            square = squares_of(squares, row, rows, inner // 16)
    if wide:
        total, up = wide_chains(a, codes, row, rows, column, columns, inner, gated, block_rows, block_columns)
    elif steps_ahead > 0:
        total, up = few_rows(
            ahead, a, low, steps, masses, codes, scales, minima, lines, rows, inner, gated, block_rows, block_columns, lanes,
            steps_ahead,
        )  # fmt: skip
    elif form == "integers":
        total, up = integer_chains(
            a, low, steps, masses, codes, scales, minima, row, rows, column, columns, matrix_rows, inner, gated,
            block_rows, block_columns, block_inner,
        )  # fmt: skip
    elif form == "native":
        total, up = native_sums(
            a, codes, row, rows, column, columns, matrix_rows, inner, gated, block_rows, block_columns, block_inner
        )  # fmt: skip
    else:
        total, up = float_chains(
            a, codes, scales, minima, row, rows, column, columns, matrix_rows, inner, inner - held, gated, block_rows,
            block_columns, block_inner, slices, run, form == "ptx",
        )  # fmt: skip
        if held > 0:
            held_x = activations(a, row, held_at, rows, inner)
            total = dot(held_codes, held_x, total)
            if gated:
                up = dot(held_up, held_x, up)
        total = joined(total, block_columns, block_rows)
        up = joined(up, block_columns, block_rows)
    if codes.dtype.element_ty == tl.float8e4nv:
        step = tl.load(steps + row, mask=row < rows, other=0.0)[None, :]
        total *= tl.load(scales + column, mask=real, other=0.0)[:, None] * step
        if gated:
            up *= tl.load(scales + column + columns, mask=real, other=0.0)[:, None] * step
    if normed:
        if not early:
            square = squares_of(squares, row, rows, inner // 16)
        inverse = (1.0 / tl.sqrt(sum_of_pairs(square, block_rows) / inner + eps))[None, :]
        total *= inverse
        up *= inverse
    if biased:
        total += tl.load(bias + column, mask=real, other=0.0).to(tl.float32)[:, None]
        if gated:
            up += tl.load(bias + column + columns, mask=real, other=0.0).to(tl.float32)[:, None]
    if gated:
        tl.store(out + target, gate(total, kind) * up, mask=mask)
    elif kind != "add":
        tl.store(out + target, total.to(scaled.dtype.element_ty), mask=mask)
    else:
        if not early:
            before = tl.load(out + target, mask=mask, other=0.0)
        _leave_stream(total + before, out, scaled, squares, norm, column, row, rows, columns, block_columns, block_rows)


def project(r: Residual, weight: Weight, eps: float, out: torch.Tensor, blocks: Blocks | None = None) -> torch.Tensor:
    """rms_norm(x) @ W.T + bias, rounded to the weights' dtype.

    Args:
        r: The stream; `scaled` holds the weight of this norm.
        weight: [out, hidden].
        eps: Added to the mean square.
        out: [rows, out] to write to; float32 takes the rounded values.
        blocks: How the product is cut; None chooses.

    Raises:
        ValueError: Shapes, dtypes or sizes do not agree, or there are more than 64 rows.
    """
    _check(r.scaled, weight, out, weight.codes.shape[0])
    _launch("project", r.scaled, weight, r.squares, out, r.scaled, None, eps, blocks)
    return out


def gated(
    r: Residual,
    weight: Weight,
    eps: float,
    out: torch.Tensor,
    activation: str = "silu",
    blocks: Blocks | None = None,
) -> torch.Tensor:
    """activation(gate) * up of rms_norm(x) @ W.T + bias, where gate is its first half; activation "silu" or "gelu_tanh".

    Args, raises: As `project`, with `out` [rows, out / 2].
    """
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation must be silu or gelu_tanh, got {activation}")
    _check(r.scaled, weight, out, weight.codes.shape[0] // 2)
    _launch(activation, r.scaled, weight, r.squares, out, out, None, eps, blocks)
    return out


def add(a: torch.Tensor, weight: Weight, r: Residual, norm: torch.Tensor, blocks: Blocks | None = None) -> None:
    """x += a @ W.T + bias, and what the next norm needs.

    Args:
        a: [rows, in], the weights' dtype.
        weight: [hidden, in].
        r: The stream; changed.
        norm: [hidden] float32, weight of the next norm.

    Raises:
        ValueError: As `project`, or hidden is no multiple of 16.
    """
    _check(a, weight, r.x, weight.codes.shape[0])
    hidden = r.x.shape[1]
    if hidden % SQUARES or norm.shape != (hidden,) or norm.dtype != torch.float32:
        raise ValueError(f"norm must be [{hidden}] float32 and hidden a multiple of {SQUARES}, got {tuple(norm.shape)}")
    _launch("add", a, weight, r.squares, r.x, r.scaled, norm, 0.0, blocks)


def plain(a: torch.Tensor, weight: Weight, out: torch.Tensor, blocks: Blocks | None = None) -> torch.Tensor:
    """a @ W.T + bias, rounded to the dtype of `a`.

    Args:
        a: [rows, in], the weights' dtype.
        weight: [out, in].
        out: [rows, out] to write to.

    Raises:
        ValueError: As `project`.
    """
    _check(a, weight, out, weight.codes.shape[0])
    _launch("plain", a, weight, a, out, a, None, 0.0, blocks)
    return out


def _check(a: torch.Tensor, weight: Weight, out: torch.Tensor, outputs: int) -> None:
    inner, codes = weight.columns, weight.codes
    if a.dim() != 2 or a.shape[1] != inner or not 1 <= a.shape[0] <= MAX_ROWS:
        raise ValueError(f"activations must be [1 to {MAX_ROWS}, {inner}], got {tuple(a.shape)}")
    if out.shape != (a.shape[0], outputs) or not all(each.is_contiguous() for each in (a, out, codes)):
        raise ValueError(f"out must be {(a.shape[0], outputs)} and all contiguous, got {tuple(out.shape)}")
    if a.dtype not in _FLOATS or (codes.dtype in _FLOATS and codes.dtype != a.dtype):
        raise ValueError(f"activations must be float, as the weight if that is, got {a.dtype} and {codes.dtype}")
    grouped = codes.dtype in (torch.int8, torch.uint8)
    scales = (codes.shape[0], inner // GROUP) if grouped else (codes.shape[0],)
    if codes.dtype not in _FLOATS and (weight.scale is None or weight.scale.shape != scales):
        raise ValueError(f"a weight of {codes.dtype} needs scales {scales}")
    if (grouped and inner % GROUP) or (codes.dtype == torch.uint8) != (weight.minimum is not None):
        raise ValueError(f"columns must be a multiple of {GROUP}, minima are for 4 bits; got {inner} of {codes.dtype}")


def check_blocks(blocks: Blocks, weight: Weight, dtype: torch.dtype) -> None:
    """Raises ValueError where a product cannot be cut like that."""
    codes, inner = weight.codes.dtype, weight.columns
    floats = is_float(codes)
    if blocks.form == "integers" and (codes not in (torch.int8, torch.uint8) or blocks.inner != STEP_4BIT):
        raise ValueError(f"integers are multiplied in steps of {STEP_4BIT} of 8 or 4 bits, got {codes} and {blocks}")
    if blocks.steps and (blocks.form != "integers" or blocks.warps < 1 or blocks.columns % (2 * blocks.warps)):
        raise ValueError(f"a program's warps multiply two outputs each, as integers, got {blocks}")
    if blocks.form == "native" and (
        codes != torch.float8_e4m3fn or (blocks.columns, blocks.inner) != (COLUMNS_FP8, STEP_FP8)
    ):
        raise ValueError(
            f"fp8 alone is multiplied as it is, in blocks of {COLUMNS_FP8} x {STEP_FP8}, got {codes} and {blocks}"
        )
    if codes == torch.uint8 and blocks.inner != STEP_4BIT:
        raise ValueError(f"numbers of 4 bits are multiplied in steps of {STEP_4BIT}, got {blocks}")
    if blocks.wide and not (floats and dtype.itemsize == 2):
        raise ValueError(f"only floats of 16 bits are multiplied in wide blocks, got {codes}")
    if blocks.held and (blocks.wide or not floats or inner <= blocks.held or (inner - blocks.held) % blocks.inner):
        raise ValueError(f"{blocks.held} of {inner} columns of {codes} cannot be held back: {blocks}")


def _launch(
    kind: str,
    a: torch.Tensor,
    weight: Weight,
    squares: torch.Tensor,
    out: torch.Tensor,
    scaled: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    blocks: Blocks | None,
) -> None:
    codes, rows, inner = weight.codes, a.shape[0], weight.columns
    matrix_rows = codes.shape[0]
    columns = out.shape[1]
    blocks = blocks or choose_blocks(codes.dtype, (matrix_rows, inner), rows, kind not in _UNGATED, a.device)
    check_blocks(blocks, weight, a.dtype)
    lines = min(codes.shape[1] * codes.element_size(), blocks.fetched // blocks.columns) // LINE_BYTES.value
    many = blocks.wide and kind not in _UNGATED
    unused, inputs = a, (a, a, a, a)
    few = blocks.steps > 0 and rows <= FEW_ROWS
    if blocks.form == "integers":
        x = round_rows(a, paired=codes.dtype == torch.uint8 and not few, overlapped=blocks.overlapped)
        inputs = (x.high, x.low, x.step, x.mass)
    elif codes.dtype == torch.float8_e4m3fn:
        rounded, step = round_to_fp8(a, overlapped=blocks.overlapped)
        inputs = (rounded, a, step, a)
    _product[(triton.cdiv(columns, blocks.columns),)](
        *inputs,
        codes,
        unused if weight.scale is None else weight.scale,
        unused if weight.minimum is None else weight.minimum,
        unused if weight.bias is None else weight.bias,
        squares,
        out,
        scaled,
        unused if norm is None else norm,
        rows,
        eps,
        inner,
        columns,
        matrix_rows,
        kind,
        weight.bias is not None,
        1 << (rows - 1).bit_length() if few else block_rows(rows, blocks.form),
        blocks.columns,
        blocks.inner,
        SLICES,
        RUN,
        blocks.held,
        blocks.wide,
        blocks.form,
        1 << (lines.bit_length() - 1) if lines else 0,
        blocks.overlapped,
        blocks.steps if few else 0,
        2 * blocks.warps,
        num_warps=blocks.warps if few else 8 if many or (blocks.form == "integers" and rows > 16) else SLICES,
        num_stages=blocks.stages,
        enable_fp_fusion=False,  # which products and sums are joined would depend on the blocks
        **({"launch_pdl": True} if blocks.overlapped else {}),
    )
