"""What kernels ask of the card that they are launched on, and how one kernel is laid over the end of the one before it.

Programmatic dependent launch (CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization"; capability 9.0 and
above) lets a kernel begin while its predecessor still runs. Every kernel of `kernels.triton` that takes part calls `begin`: it
waits until its predecessor is complete, and lets its successor begin. So a kernel that runs knows, before its own wait, that
all kernels but its predecessor are complete: it may read weights by then, and what was written two kernels before or earlier.
No program may end without the wait, and nothing may be written before it.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Measured on an H200, overlapping saves 0.1 ms of a step of one row (1B) and costs 0.3 ms of 32; whether it keeps a row's bits is
# not proven (docs/benchmarks.md).
_OVERLAPPED_ROWS = 0
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


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability; (0, 0) under the interpreter."""
    return (0, 0) if INTERPRETED else torch.cuda.get_device_capability(device)


@cache
def _overlaps(device: torch.device) -> bool:
    return capability(device) >= (9, 0)


def overlaps(device: torch.device, rows: int) -> bool:
    """Whether kernels for so many rows are launched over the end of their predecessors: none yet (`_OVERLAPPED_ROWS`)."""
    return rows <= _OVERLAPPED_ROWS and _overlaps(device)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have."""
    if INTERPRETED:
        return 1 << 20
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])
