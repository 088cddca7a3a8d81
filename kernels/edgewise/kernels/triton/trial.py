"""A first run of both kernels on a device."""

from __future__ import annotations

import subprocess

import torch
from triton.errors import TritonError

from edgewise.kernels.triton.row_sum import row_sum
from edgewise.kernels.triton.tile_product import tile_product

# No compiler, no headers or no writable cache folder; a GPU that Triton or its assembler does not know.
_FAILURES = (TritonError, RuntimeError, OSError, ValueError, AssertionError, subprocess.SubprocessError)


@torch.inference_mode()
def why_not(device: torch.device) -> str | None:
    """Compile and run both; what is in the way, or None."""
    ones = torch.ones((1, 16, 16), device=device)
    try:
        results = (tile_product(ones, ones, None), row_sum(ones))
    except _FAILURES as error:
        return f"{type(error).__name__}: {error}"
    return None if all(bool((result == 16).all()) for result in results) else "a kernel computes wrong results"
