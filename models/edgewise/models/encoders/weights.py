"""An encoder's weights as float32 arrays of numpy; without torch, which a process of ONNX Runtime need not load."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.encoders.families import LAYER, Family, Naming, Stored, family_of
from edgewise.models.encoders.shape import EncoderShape
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.safetensors_header import StoredRange, parse_safetensors_header

Array: TypeAlias = NDArray[np.float32]

FILE: Final = "model.safetensors"
_ANCHOR: Final = "embeddings.word_embeddings"
WORDS: Final = f"{_ANCHOR}.weight"
PLACES: Final = "embeddings.position_embeddings"
SEGMENTS: Final = "embeddings.token_type_embeddings"
BUCKETS: Final = "encoder.relative_attention_bias"
_FIRST: Final = "attention.self.query"


def read_given(files: ModelFiles, shape: EncoderShape) -> Mapping[str, Array]:
    """What a graph of the encoder is given when it is opened. Raises as `read_weights`."""
    return read_weights(files, shape, only=(WORDS,)) if shape.given else {}


def read_weights(files: ModelFiles, shape: EncoderShape, only: Collection[str] | None = None) -> Mapping[str, Array]:
    """All tensors of the encoder, or `only` these, by their names in BERT's files, without the prefix of a larger model.

    Raises:
        UnsupportedModel: Sharded, or a type that is not supported.
        BadModelFile: Damaged, or a tensor is missing or of another shape.
    """
    if FILE not in files.paths:
        raise UnsupportedModel(f"{files.name}: the weights of an encoder must be one file, {FILE}.")
    family = family_of(read_object(files.paths["config.json"], "config.json"))
    with closing(RangeFile(files.paths[FILE], FILE)) as file:
        stored = parse_safetensors_header(file)
        naming, prefix = _naming(files.name, family, stored)
        weights = {}
        for name, wanted in expected(shape).items():
            if only is not None and name not in only:
                continue
            part, _, kind = name.rpartition(".")
            head = family.head.get(part)
            place = naming.place(part, prefix) if head is None else Stored(head.format(prefix=prefix))
            found = stored.get(f"{place.name}.{kind}")
            whole = (wanted[0] * place.parts, *wanted[1:])
            if found is None or (found.shape != whole and not (part == PLACES and found.shape[1:] == wanted[1:])):
                has = "is missing" if found is None else f"has the shape {found.shape}, not {whole}"
                raise BadModelFile(f"{files.name}: the tensor '{place.name}.{kind}' {has}.")
            weights[name] = _read(file, found, place)
    if only is None and not shape.thetas and len(weights[f"{PLACES}.weight"]) < shape.first_place + shape.max_tokens:
        raise BadModelFile(f"{files.name}: {FILE} has fewer positions than config.json says.")
    return weights


def _naming(name: str, family: Family, stored: Mapping[str, StoredRange]) -> tuple[Naming, str]:
    """How this file calls its parts, and what stands before them: that under which its first layer is found."""
    tried = []
    for naming in family.namings:
        for prefix in naming.prefixes:
            both = [f"{naming.place(part, prefix).name}.weight" for part in (_ANCHOR, f"{LAYER}0.{_FIRST}")]
            if all(it in stored for it in both):
                return naming, prefix
            tried += both
    raise BadModelFile(f"{name}: {FILE} has no tensors {tried[0]!r} and {tried[1]!r}.")


def expected(shape: EncoderShape) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor that the graph needs; of the table of positions only the second number counts."""
    width, hidden = shape.width, shape.hidden
    found: dict[str, tuple[int, ...]] = {WORDS: (shape.vocab, width)}
    if not shape.thetas:
        found[f"{PLACES}.weight"] = (0, width)
    if shape.segments:
        found[f"{SEGMENTS}.weight"] = (shape.segments, width)
    if shape.buckets:
        found[f"{BUCKETS}.weight"] = (shape.buckets, shape.heads)
    linear = {
        "attention.self.query": (width, width),
        "attention.self.key": (width, width),
        "attention.self.value": (width, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (hidden, width),
        "output.dense": (width, hidden),
    }
    if shape.gated:
        linear["intermediate.gate"] = (hidden, width)
    norms = ["embeddings.LayerNorm", *(["final.LayerNorm"] if shape.norm_first else [])]
    for layer in range(shape.layers):
        at = f"{LAYER}{layer}."
        first = [] if shape.norm_first and layer == 0 else ["attention.output.LayerNorm"]  # the embeddings are normed
        norms += [f"{at}{name}" for name in (*first, "output.LayerNorm")]
        for name, size in linear.items():
            found[f"{at}{name}.weight"] = size
            if name not in shape.unbiased:
                found[f"{at}{name}.bias"] = size[:1]
    if shape.head is not None:
        found |= _head(shape)
        norms += ["head.norm"] if shape.head.normed else []
    kinds = ("weight",) if "output.LayerNorm" in shape.unbiased else ("weight", "bias")
    return found | {f"{norm}.{kind}": (width,) for norm in norms for kind in kinds}


def _head(shape: EncoderShape) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "head.dense.weight": (shape.width, shape.width),
        "head.out.weight": (1, shape.width),
    }
    if "head.dense" not in shape.unbiased:
        found["head.dense.bias"] = (shape.width,)
    return found | {"head.out.bias": (1,)}


def _read(file: RangeFile, stored: StoredRange, place: Stored) -> Array:
    size = stored.nbytes // place.parts
    shape = (stored.shape[0] // place.parts, *stored.shape[1:])
    data = file.read(stored.offset + place.part * size, size)
    if stored.dtype == "BF16":
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    types = {"F32": "<f4", "F16": "<f2"}
    if stored.dtype not in types:
        raise UnsupportedModel(
            f"{file.name}: the tensor {stored.name!r} has the type {stored.dtype}, not F32, F16 or BF16."
        )
    return np.frombuffer(data, types[stored.dtype]).astype(np.float32).reshape(shape)
