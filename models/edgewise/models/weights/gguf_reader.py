"""Weights of a GGUF model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.core.errors import EdgewiseError
from edgewise.models.files import ModelFiles
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.gguf import gguf_file, parse_gguf_header
from edgewise.models.weights.reader import TensorInfo
from edgewise.models.weights.stream import decode_rows


class GGUFReader:
    """`WeightReader` over one .gguf file. Tensors keep the file's names, row order and encodings."""

    def __init__(self, files: ModelFiles) -> None:
        name, path = gguf_file(files)
        self._file = RangeFile(path, name)
        try:
            stored = parse_gguf_header(self._file).tensors.values()
        except EdgewiseError:
            self._file.close()
            raise
        self._offsets = {tensor.name: tensor.offset for tensor in stored}
        self._tensors = {
            tensor.name: TensorInfo(tensor.name, tensor.shape, tensor.type, tensor.nbytes) for tensor in stored
        }

    def __repr__(self) -> str:
        return f"GGUFReader({self._file!r}, {len(self._tensors)} tensors)"

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read_into(self, name: str, out: torch.Tensor, *, first_row: int = 0) -> None:
        decode_rows(self._file, self._tensors[name], self._offsets[name], out, first_row)

    def read_raw(self, name: str, first_row: int, rows: int) -> NDArray[np.uint8]:
        info = self._tensors[name]
        row_bytes = info.nbytes // info.shape[0]
        raw = np.empty((rows, row_bytes), np.uint8)
        self._file.read_into(self._offsets[name] + first_row * row_bytes, raw.reshape(-1).data)
        return raw

    def close(self) -> None:
        self._file.close()
