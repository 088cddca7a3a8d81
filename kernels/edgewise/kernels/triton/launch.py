"""What kernels ask of the card that they are launched on, and how one kernel is laid over the end of the one before it.

Programmatic dependent launch (CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization"; capability 9.0 and
above) lets a kernel begin while its predecessor still runs. Every kernel of `kernels.triton` that takes part calls `begin`: it
waits until its predecessor is complete, and lets its successor begin. So a kernel that runs knows, before its own wait, that
all kernels but its predecessor are complete: it may read weights by then, and what was written two kernels before or earlier.
No program may end without the wait, and nothing may be written before it. A kernel that is launched the ordinary way begins when
all before it are complete, so both kinds may follow each other.
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
def begin(overlapped: tl.constexpr) -> None:
    """To be called before anything that the preceding kernel may have written is read, or anything is written."""
    if overlapped:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def fetch_rows(matrix: tl.tensor, row: tl.tensor, row_bytes: tl.constexpr, lines: tl.constexpr) -> None:
    """Ask for the first `lines` lines of rows of a matrix to be brought into the L2 cache; a hint without a result."""
    if not _NUMPY:
        line = tl.arange(0, lines)
        at = matrix.to(tl.int64) + row.to(tl.int64)[:, None] * row_bytes + line[None, :] * LINE_BYTES
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
        )


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability; (0, 0) under the interpreter."""
    return (0, 0) if INTERPRETED else torch.cuda.get_device_capability(device)


def can_overlap(device: torch.device) -> bool:
    """Whether the card can lay kernels over the end of their predecessors."""
    return capability(device) >= (9, 0)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have."""
    if INTERPRETED:
        return 1 << 20
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])
