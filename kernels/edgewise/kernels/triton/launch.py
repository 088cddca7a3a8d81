"""What kernels ask of the card that they are launched on, and how one kernel is laid over the end of the one before it.

Programmatic dependent launch (CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization"; capability 9.0 and
above) lets a kernel begin while its predecessor still runs. Every kernel of `kernels.triton` that takes part calls `begin`: it
lets its successor begin, and then waits for its predecessor's results. Before the wait a kernel may touch nothing but weights,
and no program may end without it: then results of all earlier kernels are complete whenever a wait is over.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LINE_BYTES: tl.constexpr = tl.constexpr(128)  # of the L2 cache
_NUMPY: tl.constexpr = tl.constexpr(INTERPRETED)


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """total + a @ b, factors as they are; the interpreter computes with numpy, which has no products of bfloat16."""
    if _NUMPY:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def let_next_begin() -> None:
    gdc_launch_dependents()


@triton.jit
def begin(overlapped: tl.constexpr) -> None:
    """To be called before anything that an earlier kernel may have written is read, or anything is written."""
    if overlapped:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def fetch_rows(matrix: tl.tensor, row: tl.tensor, row_bytes: tl.constexpr, lines: tl.constexpr) -> None:
    """Ask for the first `lines` lines of rows of a matrix to be brought into the L2 cache; a hint without a result."""
    line = tl.arange(0, lines)
    at = matrix.to(tl.int64) + row.to(tl.int64)[:, None] * row_bytes + line[None, :] * LINE_BYTES
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
    )


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability; (0, 0) under the interpreter."""
    return (0, 0) if INTERPRETED else torch.cuda.get_device_capability(device)


@cache
def overlaps(device: torch.device) -> bool:
    """Whether kernels are launched over the end of their predecessors."""
    return capability(device) >= (9, 0)


@cache
def multiprocessors(device: torch.device) -> int:
    return 1 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count
