"""Weights of a quantized safetensors model, shown as the unquantized tensors that a loader asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from edgewise.core.errors import BadModelFile, EdgewiseError
from edgewise.models.files import ModelFiles
from edgewise.models.weights.packed import ColumnPacked, Matrix, RowStored
from edgewise.models.weights.quantization import Quantization
from edgewise.models.weights.reader import TensorInfo
from edgewise.models.weights.safetensors import SafetensorsReader
from edgewise.models.weights.stream import check_target

_SCALES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Parts that belong to a quantized matrix, and scales of activations and KV caches: products here take unquantized
# activations, and the KV cache has scales of its own.
_COLUMN_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_ROW_PARTS = ("weight_packed", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point")
_ACTIVATIONS = (
    "input_scale", "input_scale_ub", "input_zero_point", "activation_scale", "output_scale", "output_zero_point", "k_scale",
    "v_scale", "q_scale",
)  # fmt: skip
_BY_COLUMNS = ("awq", "gptq")


class QuantizedReader:
    """`WeightReader` over AWQ, GPTQ, compressed-tensors or fp8 files. Quantized matrices appear as `....weight` of the scale's
    type, [outputs, inputs]; all other tensors as they are."""

    def __init__(self, files: ModelFiles, quantization: Quantization) -> None:
        self._source = SafetensorsReader(files)
        self._quantization = quantization
        try:
            self._matrices = self._find_matrices()
            self._tensors = self._visible()
        except EdgewiseError:
            self._source.close()
            raise

    def __repr__(self) -> str:
        return f"QuantizedReader({self._quantization.method}, {len(self._matrices)} matrices, {self._source!r})"

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read_into(self, name: str, out: torch.Tensor, *, first_row: int = 0) -> None:
        matrix = self._matrices.get(name)
        if matrix is None:
            self._source.read_into(name, out, first_row=first_row)
            return
        check_target(self._tensors[name], out, first_row)
        if not out.is_floating_point():
            raise ValueError(f"tensor '{name}' holds floats, it cannot be read into {out.dtype}")
        rounded = _SCALES[matrix.scale_type]
        for rows, columns in matrix.pieces((first_row, first_row + out.shape[0])):
            values = torch.from_numpy(matrix.decode(self._source, rows, columns)).to(rounded)
            out[rows[0] - first_row : rows[1] - first_row, columns[0] : columns[1]].copy_(values)

    def read_fp8(self, name: str, first_row: int, rows: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """See `Fp8Reader`."""
        matrix = self._matrices.get(name)
        if not isinstance(matrix, RowStored) or not self._quantization.floats or matrix.scales[1] != 1:
            return None
        codes, scale = matrix.fp8_rows(self._source, (first_row, first_row + rows))
        stored = torch.from_numpy(codes)
        if bool(((stored & 0x7F) == 0x7F).any()) or not bool(scale.isfinite().all()):
            raise BadModelFile(
                f"{self._source.file_of(name)}: the tensor '{name}' or its scale holds NaN or infinity in rows {first_row} to "
                f"{first_row + rows - 1}."
            )
        return stored.view(torch.float8_e4m3fn), scale

    def close(self) -> None:
        self._source.close()

    def _visible(self) -> dict[str, TensorInfo]:
        """Tensors in the files' order, a matrix in the place of its first part."""
        shown: dict[str, TensorInfo] = {}
        for name, info in self._source.tensors.items():
            prefix, _, part = name.rpartition(".")
            weight = f"{prefix}.weight"
            if weight in self._matrices and part in (*_COLUMN_PARTS, *_ROW_PARTS, "weight"):
                matrix = self._matrices[weight]
                size = math.prod(matrix.shape) * _SCALES[matrix.scale_type].itemsize
                shown[weight] = TensorInfo(weight, matrix.shape, matrix.scale_type, size)
            elif self._quantization.method in _BY_COLUMNS or part not in _ACTIVATIONS:
                if info.type.startswith("F8_"):  # its numbers alone mean nothing
                    scales = " or ".join(f"'NAME.{scale}'" for scale in self._scale_parts)
                    raise self._bad(
                        info, f"{info.type} without a scale; it is read of matrices 'NAME.weight' beside {scales}"
                    )
                shown[name] = info
        return shown

    def _find_matrices(self) -> dict[str, Matrix]:
        columns = self._quantization.method in _BY_COLUMNS
        marks = ("qweight",) if columns else self._scale_parts
        found: dict[str, Matrix] = {}
        for name in self._source.tensors:
            prefix, _, part = name.rpartition(".")
            if part in marks and f"{prefix}.weight" not in found:
                found[f"{prefix}.weight"] = self._columns(f"{prefix}.") if columns else self._rows(f"{prefix}.")
        return found

    # --- AWQ and GPTQ ---

    def _columns(self, prefix: str) -> ColumnPacked:
        along_inputs = self._quantization.method == "gptq"
        packed = self._part(prefix + "qweight", ("I32",), 2)
        scales = self._part(prefix + "scales", tuple(_SCALES), 2)
        groups, outputs = scales.shape
        inputs = packed.shape[0] * 8 if along_inputs else packed.shape[0]
        size = self._quantization.group_size or inputs
        has_index = along_inputs and prefix + "g_idx" in self._source.tensors
        self._same(packed, (packed.shape[0], outputs if along_inputs else outputs // 8))
        self._same(self._part(prefix + "qzeros", ("I32",), 2), (groups, outputs // 8))
        if has_index:
            self._same(self._part(prefix + "g_idx", ("I32", "I64"), 1), (inputs,))
        if outputs % 8 or groups != -(-inputs // size):
            what = f"{outputs} outputs and {groups} groups; {inputs} inputs in groups of {size}"
            raise self._bad(scales, f"{what} need a multiple of 8 outputs and {-(-inputs // size)} groups")
        return ColumnPacked(
            prefix=prefix,
            shape=(outputs, inputs),
            scale_type=scales.type,
            along_inputs=along_inputs,
            group_size=size,
            groups=groups,
            has_index=has_index,
            zero_offset=self._quantization.zero_offset,
        )

    # --- compressed-tensors and fp8 ---

    @property
    def _scale_parts(self) -> tuple[str, ...]:
        """What a scale may be called. Under the method "fp8" transformers writes `weight_scale_inv`, for blocks and for whole
        matrices (the inverse of what the matrix was made with), AutoFP8 `weight_scale`: weights are multiplied with either.
        """
        return ("weight_scale_inv", "weight_scale") if self._quantization.method == "fp8" else ("weight_scale",)

    def _rows(self, prefix: str) -> RowStored:
        scheme = self._quantization
        scale_part = next(part for part in self._scale_parts if prefix + part in self._source.tensors)
        scale = self._part(prefix + scale_part, tuple(_SCALES), None)
        shape = self._packed_shape(prefix) if scheme.packed else self._plain_shape(prefix)
        block, scales = self._grid(shape)
        if not _fits_grid(scale.shape, scales):
            raise self._bad(scale, f"the shape {list(scale.shape)}; strategy {scheme.strategy} needs {list(scales)}")
        return RowStored(
            prefix=prefix,
            shape=shape,
            scale_type=scale.type,
            bits=scheme.bits if scheme.packed else None,
            scales=scales,
            block=block,
            zeros=self._zeros(prefix, scales),
            scale_part=scale_part,
        )

    def _plain_shape(self, prefix: str) -> tuple[int, int]:
        weight = self._part(prefix + "weight", ("F8_E4M3",) if self._quantization.floats else ("I8",), 2)
        return weight.shape[0], weight.shape[1]

    def _packed_shape(self, prefix: str) -> tuple[int, int]:
        packed = self._part(prefix + "weight_packed", ("I32",), 2)
        stated = self._part(prefix + "weight_shape", ("I64", "I32"), 1)
        self._same(stated, (2,))
        outputs, inputs = (int(size) for size in self._source.read_block(stated.name, (0, 1), (0, 2))[0])
        words = -(-inputs * self._quantization.bits // 32)
        if outputs < 1 or inputs < 1 or packed.shape != (outputs, words):
            raise self._bad(packed, f"the shape {packed.shape}, '{stated.name}' says [{outputs}, {inputs}]")
        return outputs, inputs

    def _grid(self, shape: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """What shares a scale, and how many scales that makes."""
        scheme, (outputs, inputs) = self._quantization, shape
        blocks = {
            "tensor": (outputs, inputs),
            "channel": (1, inputs),
            "group": (1, scheme.group_size or inputs),
            "block": scheme.block or (outputs, inputs),
        }
        block = blocks[scheme.strategy]
        return block, (-(-outputs // max(1, block[0])), -(-inputs // max(1, block[1])))

    def _zeros(self, prefix: str, scales: tuple[int, int]) -> str | None:
        """Symmetric schemes may carry zero points, all of them 0; packed ones exist per group and per channel only."""
        if self._quantization.symmetric:
            return None
        zeros = self._part(prefix + "weight_zero_point", ("I8", "I32"), None)
        if zeros.type == "I8":
            wanted, kind = scales, "plain"
        else:
            wanted, kind = (-(-scales[0] * self._quantization.bits // 32), scales[1]), "packed"
        if not _fits_grid(zeros.shape, wanted) or (kind == "packed") != self._quantization.packed:
            raise self._bad(zeros, f"{zeros.type}{list(zeros.shape)}, {list(wanted)} are needed")
        return kind

    # --- parts ---

    def _part(self, name: str, types: tuple[str, ...], rank: int | None) -> TensorInfo:
        info = self._source.tensors.get(name)
        if info is None:
            where = self._source.file_of(next(iter(self._source.tensors)))
            raise BadModelFile(f"{where}: the tensor '{name}' of a quantized matrix is missing.")
        if info.type not in types or (rank is not None and len(info.shape) != rank) or 0 in info.shape:
            raise self._bad(info, f"{info.type}{list(info.shape)}, {' or '.join(types)} is needed")
        return info

    def _same(self, info: TensorInfo, shape: tuple[int, ...]) -> None:
        if info.shape != shape:
            raise self._bad(info, f"the shape {list(info.shape)}, {list(shape)} is needed")

    def _bad(self, info: TensorInfo, what: str) -> BadModelFile:
        return BadModelFile(f"{self._source.file_of(info.name)}: the tensor '{info.name}' has {what}.")


def _fits_grid(shape: tuple[int, ...], grid: tuple[int, int]) -> bool:
    """Whether a tensor holds a grid's values; dimensions of 1 may be missing."""
    if 1 in grid and len(shape) < 2:
        return math.prod(shape) == math.prod(grid)
    return shape == grid
