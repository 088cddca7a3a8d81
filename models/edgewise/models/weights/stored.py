"""The tensors of a safetensors model by its files' headers alone. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing

from edgewise.core.errors import BadModelFile
from edgewise.models.files import ModelFiles
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.safetensors_header import StoredRange, parse_safetensors_header

_PACKED = ("qweight", "weight_packed")  # eight or four weights in a word
_AUXILIARY = ("qzeros", "scales", "g_idx", "weight_scale", "weight_zero_point", "weight_shape")


def stored_tensors(files: ModelFiles) -> Iterator[StoredRange]:
    """Raises `BadModelFile` where there is no .safetensors file, or its header is damaged."""
    shards = [(name, path) for name, path in files.paths.items() if name.endswith(".safetensors")]
    if not shards:
        raise BadModelFile(f"{files.name}: the model has no .safetensors file.")
    for name, path in shards:
        with closing(RangeFile(path, name)) as file:
            yield from parse_safetensors_header(file).values()


def elements(tensor: StoredRange) -> int:
    """Numbers that it stands for once it is loaded; 0 for what only helps to unpack others."""
    part = tensor.name.rpartition(".")[2]
    if part in _AUXILIARY:
        return 0
    return math.prod(tensor.shape) * (8 if part in _PACKED else 1)
