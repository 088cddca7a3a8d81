"""`kernels.sample` on the CPU in C++ (src/sampling.cpp): the filters of the reference, in its order, in float64.

A token is the reference's unless the uniform number falls on the border between two ids to within rounding of float64 sums,
about one draw in 10^12: powers and sums are in an order of their own, the same on every processor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.kernels.native.faults import NO_MEMORY
from edgewise.kernels.native.library import library
from edgewise.kernels.row_controls import RowControls

_Pointer, _Int, _Float = ctypes.c_void_p, ctypes.c_int32, ctypes.c_double


class _Row(ctypes.Structure):
    """`Row` in src/sampling.cpp."""

    _fields_ = (
        *((name, _Pointer) for name in ("logits", "seen", "counted", "times", "biased", "bias", "allowed", "banned")),
        ("allowed_bytes", ctypes.c_int64),
        *((name, _Float) for name in ("temperature", "top_p", "min_p", "uniform")),
        *((name, _Float) for name in ("repetition", "presence", "frequency")),
        *((name, _Int) for name in ("count", "seen_count", "counted_count", "biased_count", "banned_count", "top_k")),
        ("group_from", _Int),
    )


@cache
def _typed() -> ctypes.CDLL:
    loaded = library()
    loaded.edgewise_draw.argtypes = [_Pointer, _Int, _Pointer]
    return loaded


def draw(logits: torch.Tensor, controls: RowControls) -> int:
    """The id that a row draws, or -1 where nothing may be drawn.

    Args:
        logits: [vocab] float32 on the CPU, contiguous; the largest is finite.
        controls: Of the row.

    Raises:
        NativeUnavailable: There is no library.
        ValueError: An id lies outside the vocabulary.
        MemoryError: There is none.
    """
    vocab = logits.numel()
    kept: list[Any] = []  # what the row points to

    def ids(numbers: Collection[int]) -> tuple[int | None, int]:
        if not numbers:
            return None, 0
        array: NDArray[np.int32] = np.fromiter(numbers, np.int32, len(numbers))
        if int(array.min()) < 0 or int(array.max()) >= vocab:
            raise ValueError(f"ids must be 0 to {vocab - 1}, got {sorted(numbers)[:1]} to {sorted(numbers)[-1:]}")
        kept.append(array)
        return array.ctypes.data, len(array)

    def floats(numbers: Collection[float]) -> int | None:
        if not numbers:
            return None
        array = np.fromiter(numbers, np.float64, len(numbers))
        kept.append(array)
        return int(array.ctypes.data)

    counts = controls.counts if controls.presence_penalty or controls.frequency_penalty else {}
    seen, seen_count = ids(set(controls.seen) if controls.repetition_penalty != 1.0 else ())
    counted, counted_count = ids(counts.keys())
    biased, biased_count = ids(controls.bias.keys())
    banned, banned_count = ids(controls.banned)
    allowed = controls.allowed
    row = _Row(
        logits.data_ptr(), seen, counted, floats(counts.values()), biased, floats(controls.bias.values()),
        None if allowed is None else ctypes.cast(ctypes.c_char_p(allowed), _Pointer), banned,
        0 if allowed is None else len(allowed),
        controls.temperature, controls.top_p, controls.min_p, controls.uniform,
        controls.repetition_penalty, controls.presence_penalty, controls.frequency_penalty,
        vocab, seen_count, counted_count, biased_count, banned_count, controls.top_k,
        -1 if controls.group_from is None else controls.group_from,
    )  # fmt: skip
    token = _Int()
    if _typed().edgewise_draw(ctypes.byref(row), 1, ctypes.byref(token)) == NO_MEMORY:
        raise MemoryError("there is no memory to draw a token")
    return token.value
