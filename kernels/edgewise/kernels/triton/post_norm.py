"""A block's result that is normed before it is added to the residual stream (Gemma 2 and 3): one program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from edgewise.kernels.triton.decode_product import SQUARES, Residual
from edgewise.kernels.triton.embed import leave_row
from edgewise.kernels.triton.sums import sum_of_pairs


@triton.jit
def _post_add(
    delta: tl.tensor,
    post: tl.tensor,
    x: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    norm: tl.tensor,
    eps: tl.tensor,
    hidden: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    real = place < hidden
    more = tl.load(delta + row * hidden + place, mask=real, other=0.0).to(tl.float32)
    mean = tl.sum(sum_of_pairs(tl.reshape(more * more, (1, block)), 1), axis=0) / hidden
    more = more * (1.0 / tl.sqrt(mean + eps)) * tl.load(post + place, mask=real, other=0.0)
    value = tl.load(x + row * hidden + place, mask=real, other=0.0) + more
    leave_row(value, x, scaled, squares, norm, row, 0, hidden, block)


def post_add(delta: torch.Tensor, post: torch.Tensor, r: Residual, norm: torch.Tensor, eps: float) -> None:
    """x += rms_norm(delta) * post, and what the next norm needs.

    Args:
        delta: [rows, hidden] floating point, contiguous: the block's result.
        post: [hidden] float32, weight of its norm.
        r: The stream; changed.
        norm: [hidden] float32, weight of the next norm.
        eps: Added to the mean square.

    Raises:
        ValueError: Shapes or dtypes do not agree, or hidden is no multiple of 16.
    """
    rows, hidden = r.x.shape
    if delta.shape != (rows, hidden) or not delta.is_contiguous() or hidden % SQUARES:
        raise ValueError(
            f"delta must be {(rows, hidden)}, contiguous, in a multiple of {SQUARES}, got {tuple(delta.shape)}"
        )
    if any(each.shape != (hidden,) or each.dtype != torch.float32 for each in (post, norm)):
        raise ValueError(f"post and norm must be [{hidden}] float32")
    block = triton.next_power_of_2(hidden)
    _post_add[(rows,)](
        delta, post, r.x, r.scaled, r.squares, norm, eps, hidden, block, num_warps=min(8, max(1, block // 256)),
        enable_fp_fusion=False,
    )  # fmt: skip
