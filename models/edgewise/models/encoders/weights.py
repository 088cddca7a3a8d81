"""An encoder's weights as float32 arrays of numpy; without torch, which a process of ONNX Runtime need not load."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.encoders.shape import EncoderShape
from edgewise.models.files import ModelFiles
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.safetensors_header import StoredRange, parse_safetensors_header

Array: TypeAlias = NDArray[np.float32]

FILE: Final = "model.safetensors"
_PREFIXES: Final = ("", "bert.", "roberta.", "xlm_roberta.", "model.")
_ANCHOR: Final = "embeddings.word_embeddings.weight"
_PLACES: Final = "embeddings.position_embeddings.weight"
_SEGMENTS: Final = "embeddings.token_type_embeddings.weight"
_TABLES: Final = frozenset({_PLACES, _SEGMENTS})
"""Their number of rows is not in `EncoderShape`."""


def read_weights(files: ModelFiles, shape: EncoderShape) -> Mapping[str, Array]:
    """All tensors of the encoder by their names in BERT's files, without the prefix of a larger model.

    Raises:
        UnsupportedModel: Sharded, or a type that is not supported.
        BadModelFile: Damaged, or a tensor is missing or of another shape.
    """
    if FILE not in files.paths:
        raise UnsupportedModel(f"{files.name}: the weights of an encoder must be one file, {FILE}.")
    with closing(RangeFile(files.paths[FILE], FILE)) as file:
        stored = parse_safetensors_header(file)
        prefix = next((it for it in _PREFIXES if it + _ANCHOR in stored), None)
        if prefix is None:
            raise BadModelFile(f"{files.name}: {FILE} has no tensor {_ANCHOR!r}.")
        weights = {}
        for name, wanted in expected(shape).items():
            found = stored.get(prefix + name)
            if found is None or (found.shape != wanted and name not in _TABLES):
                has = "is missing" if found is None else f"has the shape {found.shape}, not {wanted}"
                raise BadModelFile(f"{files.name}: the tensor {prefix + name!r} {has}.")
            weights[name] = _read(file, found)
    if len(weights[_PLACES]) < shape.first_place + shape.max_tokens or not len(weights[_SEGMENTS]):
        raise BadModelFile(f"{files.name}: {FILE} has fewer positions than config.json says, or no segment.")
    return weights


def expected(shape: EncoderShape) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor that the graph needs; of tables in `_TABLES` only the second number counts."""
    width, hidden = shape.width, shape.hidden
    found: dict[str, tuple[int, ...]] = {_ANCHOR: (shape.vocab, width), **dict.fromkeys(sorted(_TABLES), (0, width))}
    linear = {
        "attention.self.query": (width, width),
        "attention.self.key": (width, width),
        "attention.self.value": (width, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (hidden, width),
        "output.dense": (width, hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(shape.layers):
        at = f"encoder.layer.{layer}."
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]
        for name, size in linear.items():
            found |= {f"{at}{name}.weight": size, f"{at}{name}.bias": size[:1]}
    return found | {f"{norm}.{kind}": (width,) for norm in norms for kind in ("weight", "bias")}


def _read(file: RangeFile, stored: StoredRange) -> Array:
    data = file.read(stored.offset, stored.nbytes)
    if stored.dtype == "BF16":
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(stored.shape)
    types = {"F32": "<f4", "F16": "<f2"}
    if stored.dtype not in types:
        raise UnsupportedModel(
            f"{file.name}: the tensor {stored.name!r} has the type {stored.dtype}, not F32, F16 or BF16."
        )
    return np.frombuffer(data, types[stored.dtype]).astype(np.float32).reshape(stored.shape)
