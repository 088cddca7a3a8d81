"""How products of decoding are cut, by the matrix, the number of rows and the card."""

from __future__ import annotations

from typing import NamedTuple

import torch

from edgewise.kernels.triton.launch import capability, shared_memory

_MANY_OUTPUTS = 12288


class Blocks(NamedTuple):
    """How a product is cut.

    Attributes:
        columns: Outputs of a program.
        inner: Inner elements of one step, a multiple of 256.
        stages: Of the pipeline of steps.
        wide: Computed by `wide_product`; of a weight of floats.
    """

    columns: int
    inner: int
    stages: int
    wide: bool = False


def choose_blocks(codes: torch.dtype, shape: tuple[int, int], rows: int, gated: bool, device: torch.device) -> Blocks:
    """Blocks for a matrix, with fewer stages where they do not fit: such as did well on an H200 (docs/benchmarks.md).

    Few rows: small blocks, so that every multiprocessor has one. More rows: larger blocks, so that activations are not read too
    often.
    """
    outputs = shape[0]
    floats = codes in (torch.bfloat16, torch.float16, torch.float32)
    columns = 32 if rows > 16 or (outputs >= _MANY_OUTPUTS and (floats or rows > 8)) else 16
    if codes == torch.uint8:
        # One step for all rows: low and high bits are two products in each step, so its size decides the order of additions.
        blocks = Blocks(columns, 512, 4)
    elif codes in (torch.bfloat16, torch.float16) and rows > 16 and capability(device) == (9, 0):
        columns = 16 if outputs < 3072 else 32 if outputs < 4096 else 64
        blocks = Blocks(columns, 256, 4 if columns < 64 else 2 if gated else 3, wide=True)
    else:
        blocks = Blocks(columns, 512 if rows <= 8 and columns == 16 else 256, 4 if rows <= 16 else 3)
    return _fitting(blocks, rows, 2 if gated else 1, shared_memory(device))


def _fitting(blocks: Blocks, rows: int, matrices: int, most: int) -> Blocks:
    """With as many stages as `most` bytes of shared memory hold, one less than their number."""
    stage = 2 * blocks.inner * (blocks.columns * matrices + block_rows(rows))
    return blocks._replace(stages=max(2, min(blocks.stages, 1 + most // stage)))


def block_rows(rows: int) -> int:
    """Rows of the activations' block: a matrix instruction takes 8 at least."""
    return max(8, 1 << (rows - 1).bit_length())
