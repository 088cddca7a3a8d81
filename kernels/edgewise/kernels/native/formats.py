"""Formats of packed weights and their sizes. Torch-free: the memory ledger counts with this where no library is."""

from __future__ import annotations

from enum import IntEnum

from edgewise.kernels.limits import round_up

GROUP = 32  # columns that share a scale
SUPER = 256  # columns that share a float16 scale where groups have factors
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
    INT8_MIN = 6  # codes in bytes, scale and minimum as INT4
    INT4_K = 7  # as INT4, with scale and minimum a float16 number for 256 columns times one of 6 bits for 32
    INT8_K = 8  # codes in bytes, scale and minimum as INT4_K
    INT8_K16 = 9  # codes in bytes; the scale is a float16 number for 256 columns times one of 8 bits for 16

    @property
    def is_float(self) -> bool:
        """Whether products with it take float rows, not rows rounded to int8."""
        return self in (WeightFormat.FLOAT32, WeightFormat.BFLOAT16)

    @property
    def has_bytes(self) -> bool:
        """Whether codes are whole bytes."""
        return not self.is_float and self.name.startswith("INT8")

    @property
    def has_minimum(self) -> bool:
        """Whether something is added to a code times its scale."""
        return self in (WeightFormat.INT4, WeightFormat.INT8_MIN, WeightFormat.INT4_K, WeightFormat.INT8_K)

    @property
    def has_factors(self) -> bool:
        """Whether scales are products; columns are then a multiple of 256."""
        return self in (WeightFormat.INT4_K, WeightFormat.INT8_K, WeightFormat.INT8_K16)

    @property
    def takes_floats(self) -> bool:
        """Whether floats can be rounded to it; the others hold what is in a file's blocks."""
        return not self.has_factors and self is not WeightFormat.INT8_MIN


def scale_bytes(cols: int, weight_format: WeightFormat) -> int:
    """Bytes of scales and minima that stand before a panel's codes, padding included."""
    if weight_format.is_float:
        return 0
    halves = (4 if weight_format.has_minimum else 2) * PANEL_ROWS
    if weight_format.has_factors:
        return round_up(-(-cols // SUPER) * (halves + SUPER // GROUP * 2 * PANEL_ROWS), 64)
    return round_up(-(-cols // GROUP) * halves, 64)


def packed_bytes(rows: int, cols: int, weight_format: WeightFormat) -> int:
    """Bytes of a packed matrix [rows, cols], padding included (src/packing.h has the layout)."""
    columns = round_up(cols, GROUP)
    if weight_format.is_float:
        codes = columns * (4 if weight_format is WeightFormat.FLOAT32 else 2)
    else:
        codes = columns if weight_format.has_bytes else columns // 2
    return -(-rows // PANEL_ROWS) * (scale_bytes(cols, weight_format) + PANEL_ROWS * codes)


def bits_of(weight_format: WeightFormat) -> float:
    """Of a weight, scales counted."""
    return packed_bytes(PANEL_ROWS, 8 * SUPER, weight_format) / (PANEL_ROWS * SUPER)
