"""Weights of a safetensors model: one file, or shards named by an index."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.core.errors import BadModelFile, EdgewiseError
from edgewise.models.files import ModelFiles
from edgewise.models.weights.dequant import CODECS
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.reader import TensorInfo
from edgewise.models.weights.safetensors_header import StoredRange, parse_index, parse_safetensors_header
from edgewise.models.weights.stream import decode_rows

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class SafetensorsReader:
    """`WeightReader` over a model's safetensors files, under the files' own tensor names."""

    def __init__(self, files: ModelFiles) -> None:
        self._shards: dict[str, RangeFile] = {}
        self._ranges: dict[str, tuple[RangeFile, StoredRange]] = {}
        try:
            self._open(files)
        except EdgewiseError:
            self.close()
            raise
        self._tensors = {
            name: TensorInfo(name, stored.shape, stored.dtype, stored.nbytes)
            for name, (_, stored) in self._ranges.items()
        }

    def __repr__(self) -> str:
        return f"SafetensorsReader({len(self._shards)} files, {len(self._tensors)} tensors)"

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read_into(self, name: str, out: torch.Tensor, *, first_row: int = 0) -> None:
        file, stored = self._ranges[name]
        decode_rows(file, self._tensors[name], stored.offset, out, first_row)

    def file_of(self, name: str) -> str:
        """The file that holds a tensor, as errors call it."""
        return self._ranges[name][0].name

    def read_block(self, name: str, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[Any]:
        """Part of a tensor seen as a matrix (its first dimension the rows; a vector is one row, unless `rows` ends behind it).

        Reads nothing else: whole rows in one go, parts of rows one by one.

        Args:
            rows, columns: [first, last), inside the matrix.

        Returns:
            [rows, columns]; float32 for every float type up to 32 bits, else the stored type.

        Raises:
            BadModelFile: The file is shorter than it was.
        """
        stored = self._ranges[name][1]
        count, strip = rows[1] - rows[0], columns[1] - columns[0]
        return CODECS[stored.dtype].decode(self.read_bytes(name, rows, columns)).reshape(count, strip)

    def read_bytes(self, name: str, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[np.uint8]:
        """As `read_block`, but the bytes as they are stored, one after the other."""
        file, stored = self._ranges[name]
        codec = CODECS[stored.dtype]
        width = _row_width(stored.shape, rows[1])
        count, strip = rows[1] - rows[0], columns[1] - columns[0]
        raw = np.empty(count * strip * codec.block_bytes, np.uint8)
        first = stored.offset + (rows[0] * width + columns[0]) * codec.block_bytes
        if strip == width:
            file.read_into(first, raw.data)
        else:
            view, step = raw.data, strip * codec.block_bytes
            for row in range(count):
                file.read_into(first + row * width * codec.block_bytes, view[row * step : (row + 1) * step])
        return raw

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()

    def _open(self, files: ModelFiles) -> None:
        if SINGLE not in files.paths and INDEX in files.paths:
            self._open_index(files)
            return
        file, stored = self._shard(files, _single_name(files))
        self._ranges = {name: (file, tensor) for name, tensor in stored.items()}

    def _shard(self, files: ModelFiles, name: str) -> tuple[RangeFile, dict[str, StoredRange]]:
        file = self._shards[name] = RangeFile(files.paths[name], name)
        return file, parse_safetensors_header(file)

    def _open_index(self, files: ModelFiles) -> None:
        index = RangeFile(files.paths[INDEX], INDEX)
        try:
            weight_map = parse_index(index)
        finally:
            index.close()
        shards = {name: self._shard(files, _checked(index, files, name)) for name in sorted(set(weight_map.values()))}
        for tensor, shard in weight_map.items():
            file, stored = shards[shard]
            if tensor not in stored:
                raise file.bad(8, f"tensor '{tensor}' is missing, {INDEX} says that it is here")
            self._ranges[tensor] = (file, stored[tensor])


def _row_width(shape: tuple[int, ...], last_row: int) -> int:
    if len(shape) < 2:
        total = shape[0] if shape else 1
        return total if last_row == 1 else 1
    return math.prod(shape[1:])


def _single_name(files: ModelFiles) -> str:
    if SINGLE in files.paths:
        return SINGLE
    found = [name for name in files.paths if name.endswith(".safetensors")]
    if len(found) != 1:
        what = f"{len(found)} .safetensors files and neither {SINGLE} nor {INDEX}"
        raise BadModelFile(f"{files.name}, byte 0: the model has {what}")
    return found[0]


def _checked(index: RangeFile, files: ModelFiles, name: str) -> str:
    """A shard's name is only ever looked up among the model's own files; it is never turned into a path."""
    if name not in files.paths:
        kind = "lies outside the model's folder" if "/" in name or "\\" in name or "\0" in name else "is missing"
        raise index.bad(0, f"the shard {name!r} that the index names {kind}")
    if not name.endswith(".safetensors"):
        raise index.bad(0, f"the shard {name!r} that the index names is not a .safetensors file")
    return name
