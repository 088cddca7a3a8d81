"""Weights packed for native products: panels of 16 rows, groups of 32 columns (src/packing.h has the layout)."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from dataclasses import dataclass
from typing import Any

import torch

from edgewise.kernels.limits import round_up
from edgewise.kernels.native.faults import NO_MEMORY
from edgewise.kernels.native.formats import GROUP, PANEL_ROWS, SUPER, WeightFormat, packed_bytes
from edgewise.kernels.native.library import library

_Pointer = ctypes.c_void_p
_Long = ctypes.c_int64

# GGUF's block types that pack without loss: GGUF's number, columns and bytes of a block, and the formats that hold them.
_BLOCKS = {
    "Q4_0": (2, GROUP, 18, (WeightFormat.INT4_EVEN, WeightFormat.INT4, WeightFormat.INT8)),
    "Q4_1": (3, GROUP, 20, (WeightFormat.INT4, WeightFormat.INT8_MIN)),
    "Q5_0": (6, GROUP, 22, (WeightFormat.INT8,)),
    "Q5_1": (7, GROUP, 24, (WeightFormat.INT8_MIN,)),
    "Q8_0": (8, GROUP, 34, (WeightFormat.INT8,)),
    "Q4_K": (12, SUPER, 144, (WeightFormat.INT4_K, WeightFormat.INT8_K)),
    "Q5_K": (13, SUPER, 176, (WeightFormat.INT8_K,)),
    "Q6_K": (14, SUPER, 210, (WeightFormat.INT8_K16,)),
}


class _Slab:
    """Zeroed memory for weights, in mappings that matrices share: a mapping ends with the last tensor that lies in it.

    A decoding step reads all weights once. In pages of 4 KiB it waits for address translation nearly as long as for the data: a
    model of 135M parameters reads 8 bits a weight at 12 GB/s, in huge pages at 19 (one Zen 4 core).
    """

    SIZE = 32 << 20
    HUGE = 2 << 20

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()

    def take(self, count: int) -> torch.Tensor:
        """`count` bytes, aligned to 64."""
        with self._lock:
            room = round_up(count, 64)
            if room > len(self._left):
                self._left = self._map(max(room, self.SIZE))
            taken, self._left = self._left[:count], self._left[room:]
            return taken

    def _map(self, count: int) -> torch.Tensor:
        memory = mmap.mmap(-1, round_up(count, self.HUGE) + self.HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages: the same memory, slower
            memory.madvise(mmap.MADV_HUGEPAGE)
        data = torch.frombuffer(memory, dtype=torch.uint8)
        start = -data.data_ptr() % self.HUGE
        return data[start : start + round_up(count, self.HUGE)]


_slab = _Slab()


def can_pack_blocks(kind: str, weight_format: WeightFormat) -> bool:
    """Whether GGUF blocks of type `kind` ("Q4_0", ...) can be packed into a format without loss."""
    return kind in _BLOCKS and weight_format in _BLOCKS[kind][3]


@dataclass(frozen=True)
class PackedMatrix:
    """A weight [rows, cols] for native products.

    Attributes:
        data: uint8 [packed_bytes(rows, cols, format)] on the CPU.
        rows: Outputs.
        cols: Inputs.
        format: How it is stored.
    """

    data: torch.Tensor
    rows: int
    cols: int
    format: WeightFormat

    @staticmethod
    def zeros(rows: int, cols: int, weight_format: WeightFormat) -> PackedMatrix:
        """A matrix to pack rows into, beside others in huge pages where the system has them.

        Raises:
            ValueError: A size is not positive.
        """
        if rows < 1 or cols < 1:
            raise ValueError(f"a matrix needs rows and columns, got [{rows}, {cols}]")
        if weight_format.has_factors and cols % SUPER:
            raise ValueError(f"{weight_format.name} takes a multiple of {SUPER} columns, got {cols}")
        return PackedMatrix(_slab.take(packed_bytes(rows, cols, weight_format)), rows, cols, weight_format)

    def pack_rows(self, x: torch.Tensor, first: int) -> None:
        """Round rows of floats to the format; any run of rows, so that a large weight needs no whole float copy.

        int8 by max|x| / 127; int4 by the 16 equal steps of least squared error that a search
        finds for 32 values; int4-even by the extreme value / -8.
        Codes are the nearest to the scale as it is stored, in float16.

        Args:
            x: [n, cols], floating point on the CPU.
            first: The row where x[0] goes.

        Raises:
            ValueError: Shapes do not agree, a value is not finite or too large for a float16 scale, or the format holds blocks
                of a file alone.
        """
        if not self.format.takes_floats:
            raise ValueError(f"{self.format.name} holds blocks of a file; floats are not rounded to it")
        self._check(first, *x.shape)
        x = x.float().contiguous()
        bad = _call("edgewise_pack_rows", x.data_ptr(), len(x), self.cols, self.format, self.data.data_ptr(), first)
        if bad >= 0:
            raise ValueError(f"row {first + bad} holds NaN, infinity or a value too large for {self.format.name}")

    def pack_codes(
        self, codes: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor | None, first: int = 0
    ) -> None:
        """Rows whose codes were chosen elsewhere.

        Args:
            codes: [n, cols] int8: -127 to 127, or for 4 bits 0 to 15 (int4-even: the value plus 8); cols a multiple of 32.
            scales: [n, cols / 32] float16.
            minima: The same for INT4 and INT8_MIN, else None.
            first: The row where codes[0] goes.

        Raises:
            ValueError: Shapes, types or the range of codes do not fit the format.
        """
        self._check(first, *codes.shape)
        groups = (len(codes), self.cols // GROUP)
        given = [scales] if minima is None else [scales, minima]
        if any(each.shape != groups or each.dtype != torch.float16 for each in given) or self.cols % GROUP:
            raise ValueError(f"scales and minima must be float16 {groups}, columns a multiple of {GROUP}")
        if self.format.is_float or self.format.has_factors or (minima is None) == self.format.has_minimum:
            raise ValueError(
                f"{self.format.name} is not stored as these codes: minima belong to INT4 and INT8_MIN alone"
            )
        low, high = (-127, 127) if self.format.has_bytes else (0, 15)
        if codes.dtype != torch.int8 or int(codes.min()) < low or int(codes.max()) > high:
            raise ValueError(f"codes must be int8 from {low} to {high}")
        codes, scales = codes.contiguous(), scales.contiguous()
        minima = None if minima is None else minima.contiguous()
        arrays = (codes.data_ptr(), scales.data_ptr(), None if minima is None else minima.data_ptr())
        _call("edgewise_pack_codes", *arrays, len(codes), self.cols, self.format, self.data.data_ptr(), first)

    def pack_blocks(self, raw: torch.Tensor, kind: str, first: int) -> None:
        """Rows of GGUF blocks, without loss: Q4_0 into INT4_EVEN, INT4 or INT8, Q4_1 into INT4 or INT8_MIN, Q5_0 and Q8_0 into
        INT8, Q5_1 into INT8_MIN, Q4_K into INT4_K or INT8_K, Q5_K into INT8_K, Q6_K into INT8_K16.

        Args:
            raw: uint8 [n, bytes of a row], rows contiguous.
            kind: GGUF's name of the block type.
            first: The row where raw[0] goes.

        Raises:
            ValueError: The format cannot hold the blocks without loss, a scale or minimum is not finite, or sizes do not agree.
        """
        if not can_pack_blocks(kind, self.format):
            raise ValueError(f"{kind} does not fit {self.format.name} without loss; dequantize and use pack_rows")
        number, columns, size, _ = _BLOCKS[kind]
        if raw.dtype != torch.uint8 or raw.dim() != 2 or raw.stride(1) != 1:
            raise ValueError("blocks must be uint8 [rows, bytes], contiguous in a row")
        if self.cols % columns or raw.shape[1] != self.cols // columns * size:
            raise ValueError(f"{self.cols} columns of {kind} do not take {raw.shape[1]} bytes")
        self._check(first, len(raw), self.cols)
        source = (raw.data_ptr(), raw.stride(0), number, len(raw), self.cols)
        bad = _call("edgewise_pack_blocks", *source, self.format, self.data.data_ptr(), first)
        if bad >= 0:
            raise ValueError(
                f"row {first + bad} has a scale or minimum that is NaN, infinite or too large for {self.format.name}"
            )

    def unpack(self, first: int = 0, count: int | None = None) -> torch.Tensor:
        """Rows [first, first + count) as float32 [count, cols]: what products compute with; count None: to the last.

        Raises:
            ValueError: There are no such rows.
        """
        count = self.rows - first if count is None else count
        self._check(first, count, self.cols)
        out = torch.empty((count, self.cols))
        where = (self.data.data_ptr(), self.rows, self.cols, self.format, first, count)
        _call("edgewise_unpack_rows", *where, out.data_ptr())
        return out

    def _check(self, first: int, count: int, cols: int) -> None:
        if cols != self.cols or not 0 <= first <= first + count <= self.rows:
            raise ValueError(
                f"rows [{first}, {first + count}) of {cols} columns do not fit into a matrix [{self.rows}, {self.cols}]"
            )


def pack(x: torch.Tensor, weight_format: WeightFormat) -> PackedMatrix:
    """A whole weight [rows, cols] by `PackedMatrix.pack_rows`.

    Raises:
        ValueError: See there.
    """
    rows, cols = x.shape
    matrix = PackedMatrix.zeros(rows, cols, weight_format)
    matrix.pack_rows(x, 0)
    return matrix


def alternate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up by turns of 16, as gated products take them; each is filled up with zeros to whole panels.

    Args:
        gate: [rows, ...]: floats, or raw blocks (zero bytes are zeros in all that are packed).
        up: The same.

    Returns:
        [2 * rows rounded up to 16, ...].

    Raises:
        ValueError: Shapes differ.
    """
    if gate.shape != up.shape:
        raise ValueError(f"gate and up must have one shape, got {tuple(gate.shape)} and {tuple(up.shape)}")
    rows = round_up(len(gate), PANEL_ROWS)
    out = gate.new_zeros((2, rows, *gate.shape[1:]))
    out[0, : len(gate)], out[1, : len(up)] = gate, up
    return out.view(2, rows // PANEL_ROWS, PANEL_ROWS, *gate.shape[1:]).transpose(0, 1).flatten(0, 2)


def pack_gate_up(gate: torch.Tensor, up: torch.Tensor, weight_format: WeightFormat) -> PackedMatrix:
    """Both matrices of a gated block [n, cols] in one, for the epilogues of products that multiply them.

    Raises:
        ValueError: Shapes differ, or see `PackedMatrix.pack_rows`.
    """
    return pack(alternate(gate, up), weight_format)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "edgewise_pack_rows": (_Pointer, _Long, _Long, ctypes.c_int32, _Pointer, _Long),
    "edgewise_pack_codes": (_Pointer, _Pointer, _Pointer, _Long, _Long, ctypes.c_int32, _Pointer, _Long),
    "edgewise_pack_blocks": (_Pointer, _Long, ctypes.c_int32, _Long, _Long, ctypes.c_int32, _Pointer, _Long),
    "edgewise_unpack_rows": (_Pointer, _Long, _Long, ctypes.c_int32, _Long, _Long, _Pointer),
}


def _call(name: str, *arguments: int | None) -> int:
    function = getattr(library(), name)
    function.argtypes, function.restype = _SIGNATURES[name], _Long
    found = int(function(*arguments))
    if found == NO_MEMORY:
        raise MemoryError("there is no memory to pack weights")
    return found
