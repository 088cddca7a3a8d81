"""Formats of packed weights and their sizes. Torch-free: the memory ledger counts with this where no library is."""

from __future__ import annotations

from enum import IntEnum

from edgewise.kernels.limits import round_up

GROUP = 32  # columns that share a scale
PANEL_ROWS = 16  # rows that lie beside one another


class WeightFormat(IntEnum):
    """How a packed weight is stored; numbers are those of kernels.h."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2  # codes -127 to 127 and a float16 scale for 32 columns of a row
    INT4 = 3  # codes 0 to 15, a float16 scale and a float16 minimum for 32 columns
    INT4_EVEN = 4  # codes -8 to 7 and a float16 scale for 32 columns
    INT8_ROTATED = (
        5  # as INT8, of groups turned by a Walsh-Hadamard transform, as rows that they are multiplied with are
    )

    @property
    def is_float(self) -> bool:
        """Whether products with it take float rows, not rows rounded to int8."""
        return self in (WeightFormat.FLOAT32, WeightFormat.BFLOAT16)

    @property
    def has_bytes(self) -> bool:
        """Whether codes are whole bytes."""
        return self in (WeightFormat.INT8, WeightFormat.INT8_ROTATED)


# Bytes of a group of 32 columns in a panel of 16 rows: codes, scales and minima.
_CODES = {
    WeightFormat.FLOAT32: 2048,
    WeightFormat.BFLOAT16: 1024,
    WeightFormat.INT8: 512,
    WeightFormat.INT4: 256,
    WeightFormat.INT4_EVEN: 256,
    WeightFormat.INT8_ROTATED: 512,
}
_SCALES = {
    WeightFormat.FLOAT32: 0,
    WeightFormat.BFLOAT16: 0,
    WeightFormat.INT8: 32,
    WeightFormat.INT4: 64,
    WeightFormat.INT4_EVEN: 32,
    WeightFormat.INT8_ROTATED: 32,
}


def packed_bytes(rows: int, cols: int, weight_format: WeightFormat) -> int:
    """Bytes of a packed matrix [rows, cols], padding included (src/packing.h has the layout)."""
    groups = -(-cols // GROUP)
    panel = round_up(groups * _SCALES[weight_format], 64) + groups * _CODES[weight_format]
    return -(-rows // PANEL_ROWS) * panel
