"""Store new keys and values in their pages."""

from __future__ import annotations

import torch

from edgewise.kernels.back_end import BackEnd
from edgewise.kernels.native import kv_write as native
from edgewise.kernels.paging import SCALED_FORMATS, KVLayer
from edgewise.kernels.reference import kv_write as reference


def write_kv(
    kv: KVLayer,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
    back_end: BackEnd = "reference",
) -> None:
    """Write T tokens' keys and values in place.

    int8 and fp8 pages (e4m3fn: 4 bits of exponent, 3 of mantissa, no infinity; Micikevicius et al. 2022, "FP8 Formats for Deep
    Learning", table 1): scale = max|row| / 127 or / 448 per token and head, values rounded half to even; a row of zeros has
    scale 0, a row with NaN or infinity has scale NaN, so that the fault stays visible.

    Args:
        kv: The layer's pages; changed.
        k, v: [T, kv_heads, head_dim] floating point.
        slots: [T] int64, page * PAGE_TOKENS + offset; all different.
        rows: `kv_rows(slots, kv_heads)` if the caller has it from another layer; `native` needs none.
        back_end: All store the same bits.

    Raises:
        ValueError: Shapes or dtypes do not agree.
        NativeUnavailable: `native` was asked for and there is no library.
    """
    if k.dim() != 3 or k.shape != v.shape or (k.shape[1], k.shape[2]) != (kv.k.shape[1], kv.k.shape[3]):
        raise ValueError(
            f"k and v must be [T, {kv.k.shape[1]}, {kv.k.shape[3]}], got {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if slots.shape != k.shape[:1] or slots.dtype != torch.int64:
        raise ValueError(f"slots must be [{k.shape[0]}] int64, got {tuple(slots.shape)} {slots.dtype}")
    if kv.k.dtype in SCALED_FORMATS and (kv.k_scale is None or kv.v_scale is None):
        raise ValueError(f"{kv.k.dtype} pages need k_scale and v_scale")
    if back_end == "native":
        native.write(kv, k, v, slots)
        return
    if rows is None:
        rows = kv_rows(slots, k.shape[1])
    if kv.k_scale is None or kv.v_scale is None:
        reference.write(kv, k, v, rows)
    else:
        reference.write_scaled(kv, kv.k_scale, kv.v_scale, k, v, rows)


def kv_rows(slots: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[T * kv_heads] int64: where each token's heads lie when a layer is seen as rows of head_dim values."""
    return reference.rows(slots, kv_heads)
