"""How products of decoding are cut, by the matrix, the number of rows and the card."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from edgewise.kernels.triton.launch import capability, shared_memory

Form = Literal["plain", "ptx", "integers", "native"]
"""How rounded weights are multiplied: converted by the compiler, converted by what `narrow` writes out, as integers
(`integer_product`), or in fp8 by the card's own instructions (`fp8_product`). Weights of 8 bits have the same bits in the first
two, weights of 4 bits do not; weights of floats know one form only."""
FORMS: tuple[Form, ...] = ("plain", "ptx", "integers", "native")

ROW_CLASSES = (8, 16, 32, 64)
"""Rows that products are compiled for; a batch takes the next."""
STEP_4BIT = 512
"""Columns of a step of 4-bit numbers: low and high ones are two products in a step, so it decides the order of additions."""
STEP_FP8, COLUMNS_FP8, _LEAST_ROWS_FP8 = 256, 64, 16
"""Columns of a step, outputs of a program, and fewest rows of its block, of fp8 by the card's own instructions. Hopper's add a
step's products in fewer bits than float32 has, and Triton takes them for 64 outputs and 16 rows at least, so all three decide
results."""
FEW_ROWS = 4
"""Rows that are multiplied as integers without matrix instructions at most: each takes half as long again as its bytes."""
_MANY_OUTPUTS = 12288
HEAD_OUTPUTS, LONG_INNER = 65536, 8192
"""From so many outputs on a product of rounded weights is cut like a head's, and beyond so many columns like a long one."""


class Blocks(NamedTuple):
    """How a product is cut. Nothing here but `form` changes a bit of a result.

    Attributes:
        columns: Outputs of a program.
        inner: Inner elements of one step, a multiple of 256; 512 of 4-bit numbers and of integers, 256 of the form "native".
        stages: Of the pipeline of steps.
        wide: Computed by `wide_product`; of a weight of floats.
        held: The last inner elements of a weight of floats that are loaded before the program waits for its predecessor: 0, or
            a power of two from 256 on that leaves a multiple of `inner`.
        fetched: Bytes of the weight that a program asks the L2 cache for before it waits.
        form: Of rounded weights.
        overlapped: Launched over the end of the kernel before it.
        steps: Of the form "integers": up to `FEW_ROWS` rows are multiplied without matrix instructions (`integer_rows`), and a
            thread has so many steps of codes in its registers, and as many on their way. 0: by matrix instructions.
        warps: That a program has then; each multiplies two outputs at a time.
    """

    columns: int
    inner: int
    stages: int
    wide: bool = False
    held: int = 0
    fetched: int = 0
    form: Form = "plain"
    overlapped: bool = False
    steps: int = 0
    warps: int = 0


def choose_blocks(
    codes: torch.dtype,
    shape: tuple[int, int],
    rows: int,
    gated: bool,
    device: torch.device,
    form: Form = "plain",
) -> Blocks:
    """Blocks for a matrix [out, in] where nothing was measured: such as did well on an H200 (docs/benchmarks.md).

    Few rows: small blocks, so that every multiprocessor has one. More rows: larger blocks, so that activations are not read too
    often. There are fewer stages where they do not fit.
    """
    outputs = shape[0]
    floats = is_float(codes)
    columns = 32 if rows > 16 or (outputs >= _MANY_OUTPUTS and (floats or rows > 8)) else 16
    if form == "native" and codes == torch.float8_e4m3fn:
        blocks = Blocks(COLUMNS_FP8, STEP_FP8, 4, form=form)
    elif form == "integers" and not floats and codes != torch.float8_e4m3fn:
        blocks = _of_integers(shape, rows, gated, device)
    elif form == "ptx" and codes in (torch.int8, torch.uint8) and rows <= 8 and capability(device) == (9, 0):
        blocks = Blocks(32 if outputs >= HEAD_OUTPUTS else 16, STEP_4BIT, 3, form=form)
    elif codes == torch.uint8:
        blocks = Blocks(columns, STEP_4BIT, 4, form=form)
    elif codes in (torch.bfloat16, torch.float16) and rows > 16 and capability(device) == (9, 0):
        columns = 16 if outputs < 3072 else 32 if outputs < 4096 else 64
        blocks = Blocks(columns, 256, 4 if columns < 64 else 2 if gated else 3, wide=True)
    else:
        step = 512 if rows <= 8 and columns == 16 else 256
        blocks = Blocks(columns, step, 4 if rows <= 16 else 3, form="plain" if floats else form)
    return fitting(blocks, rows, gated, device)


def _of_integers(shape: tuple[int, int], rows: int, gated: bool, device: torch.device) -> Blocks:
    """Few rows: more steps on their way where a program has many of them."""
    if rows > FEW_ROWS:
        return Blocks(32, STEP_4BIT, 3, form="integers")
    steps = 4 if shape[1] > LONG_INNER else 1 if gated else 2
    columns = 32 if gated or shape[0] >= HEAD_OUTPUTS else 16
    over = capability(device) >= (9, 0)
    return Blocks(columns, STEP_4BIT, 3, form="integers", overlapped=over, steps=steps, warps=8)


def fitting(blocks: Blocks, rows: int, gated: bool, device: torch.device) -> Blocks:
    """With as many stages as the card's shared memory holds, one less than their number, and nothing held that does not fit."""
    most, matrices = shared_memory(device), 2 if gated else 1
    element = 1 if blocks.form == "native" else 2
    stage = element * blocks.inner * (blocks.columns * matrices + block_rows(rows, blocks.form))
    if 2 * blocks.held * blocks.columns * matrices + stage > most:
        blocks = blocks._replace(held=0)
    room = most - 2 * blocks.held * blocks.columns * matrices
    return blocks._replace(stages=max(2, min(blocks.stages, 1 + room // stage)))


def is_float(codes: torch.dtype) -> bool:
    """Whether weights of this type are floats as they are, without scales."""
    return codes in (torch.bfloat16, torch.float16, torch.float32)


def block_rows(rows: int, form: Form = "plain") -> int:
    """Rows of the activations' block: a matrix instruction takes 8 at least."""
    return max(_LEAST_ROWS_FP8 if form == "native" else 8, 1 << (rows - 1).bit_length())
