"""Products of many small matrices, the same for a row however many rows and matrices are computed beside it."""

from __future__ import annotations

import torch

from edgewise.kernels.compiled import compiled
from edgewise.kernels.reference import tile_product as reference


def tile_product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """a @ b for each matrix of a batch.

    On CUDA a row's bits depend on that row and its `b` alone, by construction (`kernels.triton.tile_product`); where those
    kernels cannot run, and on the CPU, this is `torch.bmm`, whose behaviour `linear.tiles_invariant` measures.

    Args:
        a: [batch, rows, inner] float32.
        b: [batch, inner, columns] float32; contiguous or the transpose of a contiguous one, else it is copied.
        out: [batch, rows, columns] float32 to write to, or None.

    Returns:
        [batch, rows, columns] float32; `out` if that was given.

    Raises:
        ValueError: Shapes, dtypes or devices do not agree.
    """
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ValueError(
            f"a must be [batch, rows, inner] and b [batch, inner, columns], got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    size = (*a.shape[:2], b.shape[2])
    if out is not None and out.shape != size:
        raise ValueError(f"out must be {size}, got {tuple(out.shape)}")
    given = [a, b] if out is None else [a, b, out]
    if any(each.dtype != torch.float32 or each.device != a.device for each in given):
        raise ValueError(f"a, b and out must be float32 on one device, got {[(x.dtype, str(x.device)) for x in given]}")
    if compiled(a.device):
        from edgewise.kernels.triton import tile_product as kernel

        return kernel.tile_product(a, b, out)
    return reference.tile_product(a, b, out)
