"""`kernels.attention` on the CPU in C++ (src/attention.inc.h), over pages of any format."""

from __future__ import annotations

import ctypes

import torch

from edgewise.kernels.native.faults import refuse
from edgewise.kernels.native.library import library
from edgewise.kernels.native.pages import Pages, pages
from edgewise.kernels.paging import AttentionMeta, KVLayer

_POINTERS = ("q", "out", "positions", "visible", "block_tables", "query_lens")
_INTS = ("sequences", "table_width", "heads", "window")


class _Call(ctypes.Structure):
    """`AttentionCall` in src/attention_abi.cpp."""

    _fields_ = (
        ("pages", Pages),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int32) for name in _INTS),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


def attention(
    q: torch.Tensor, kv: KVLayer, meta: AttentionMeta, scale: float, window: int | None, softcap: float | None
) -> torch.Tensor:
    """As `kernels.attention.paged_attention`, which checks the arguments. Works on all threads of the pool.

    Raises:
        NativeUnavailable: There is no library.
        ValueError: The pages cannot be used, or a position or a page of the tables lies outside.
        MemoryError: There is none for partial results.
    """
    tokens = sum(meta.query_lens)
    queries = q.float().contiguous()
    out = torch.empty_like(queries)
    out[tokens:] = 0.0
    positions = meta.positions.contiguous()
    visible = positions if meta.visible is None else meta.visible.contiguous()
    tables = meta.block_tables.contiguous()
    lengths = torch.tensor(meta.query_lens, dtype=torch.int32)
    call = _Call(
        pages(kv),
        *(tensor.data_ptr() for tensor in (queries, out, positions, visible, tables, lengths)),
        len(meta.query_lens),
        tables.shape[1],
        q.shape[1],
        window or 0,
        scale,
        softcap or 0.0,
    )
    fault = library().edgewise_attention(ctypes.byref(call), ctypes.c_int64(tokens))
    if fault:
        refuse(fault, num_pages=call.pages.pages, meta=meta)
    return out.to(q.dtype)
