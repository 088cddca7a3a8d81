"""Writes a GGUF file with matrices in 8 or 4 bits (Q8_0, Q4_1), smoothed and rounded by what their inputs were on a text.

It is an ordinary file: scales are folded into norms and rows (`quantize.smoothing`), so every reader of GGUF computes with it.
Tensors are read, rounded and written in bands of rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.decoder.loading import ProgressSink
from edgewise.models.decoder.names import Names, names_of
from edgewise.models.decoder.native.formats import stored_bits
from edgewise.models.files import ModelFiles
from edgewise.models.quantize.energies import LayerEnergies
from edgewise.models.quantize.smoothing import Scales, choose_scales
from edgewise.models.weights.gguf import DEFAULT_ALIGNMENT, header_of
from edgewise.models.weights.gguf_types import ENCODINGS
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.reader import TensorInfo, WeightReader
from edgewise.models.weights.rounding import GROUP, LARGEST_HALF, BadRow, require_within, round_int4, round_int8
from edgewise.models.weights.write import PlannedTensor, gguf_header

QuantizedTo = Literal["int8", "int4"]
Part = Literal["qkv", "output", "gate_up", "down"]

STRENGTH: Final = {"int8": 0.5, "int4": 0.25}
"""Of smoothing, by measurement: in 4 bits what it adds to the matrix's own error weighs more."""

_BAND: Final = 1 << 22  # elements rounded at a time
_LARGEST: Final = torch.finfo(torch.float32).max
_BLOCKS: Final = {name: (elements, size) for name, elements, size in ENCODINGS.values()}


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What becomes of a tensor: it is multiplied by `columns` and divided by `rows` (None for ones), then stored as `type`."""

    type: str
    columns: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    importance: torch.Tensor | None = None


def require_quantizable(files: ModelFiles, to: QuantizedTo) -> DecoderConfig:
    """Its configuration.

    Raises:
        UnsupportedModel: The model is not one that can be quantized here, and why.
        BadModelFile, StorageError: It cannot be read.
    """
    if files.format != "gguf":
        raise UnsupportedModel(
            f"{files.name} is no GGUF file, and only these are quantized: convert it with llama.cpp's convert_hf_to_gguf.py, and "
            "import the result."
        )
    config = read_config(files)
    if stored_bits(config)[0] == "int4" and to == "int4":
        raise UnsupportedModel(f"{files.name} has 4 bits already; rounding it again would only lose: use it as it is.")
    if config.experts is not None:
        raise UnsupportedModel(f"{files.name} has layers of experts, which are not quantized yet: use it as it is.")
    return config


def quantized_bytes(files: ModelFiles, to: QuantizedTo, wide: Collection[Part] = ()) -> int:
    """Size of the tensors that `write_quantized` would write: how they are stored does not depend on what is measured.

    Raises:
        UnsupportedModel, BadModelFile, StorageError: As `require_quantizable`.
    """
    config = require_quantizable(files, to)
    hidden, inner = torch.ones(config.hidden_size), torch.ones(config.ffn_size)
    energies = [
        LayerEnergies(hidden, torch.ones(config.num_heads * config.head_dim), hidden, inner)
    ] * config.num_layers
    with closing(open_weights(files)) as reader:
        recipes = _recipes(config, names_of(config, "gguf", list(reader.tensors)), reader, to, energies, wide)
        return sum(_planned(info, recipes[info.name].type).nbytes for info in reader.tensors.values())


def write_quantized(
    files: ModelFiles,
    out: Path,
    to: QuantizedTo,
    energies: Sequence[LayerEnergies],
    *,
    wide: Collection[Part] = (),
    progress: ProgressSink | None = None,
) -> float:
    """Write `out`; returns the bits of a weight, the mean over all matrices.

    Args:
        files: A decoder in GGUF.
        to: Of the matrices of layers; embedding and head have 8 bits in both. A matrix whose columns do not fill groups of 32
            is stored in 16 bits.
        energies: What `InputMeter` found for each layer.
        wide: Matrices that have 8 bits with "int4" too.
        progress: Told the share done.

    Raises:
        UnsupportedModel: See `require_quantizable`.
        BadModelFile: The file is damaged, or a value is not finite or too large for its new type, by tensor and row.
        StorageError: The file cannot be read.
    """
    config, header = require_quantizable(files, to), header_of(files)
    alignment = header.get_int("general.alignment") or DEFAULT_ALIGNMENT
    with closing(open_weights(files)) as reader, out.open("wb") as target:
        names = names_of(config, "gguf", list(reader.tensors))
        recipes = _recipes(config, names, reader, to, energies, wide)
        planned = [_planned(info, recipes[info.name].type) for info in reader.tensors.values()]
        head = header.without_tensors()
        entries = len(header.metadata)
        target.write(gguf_header(head[_PREAMBLE:], entries, planned, alignment))
        total, done = sum(it.nbytes for it in planned), 0
        for it in planned:
            for band in _bands(reader, reader.tensors[it.name], recipes[it.name], files):
                target.write(band)
                done += len(band)
                if progress is not None:
                    progress(done / total)
            target.write(bytes(-it.nbytes % alignment))
    matrices = [it for it in planned if len(it.shape) > 1]
    return 8 * sum(it.nbytes for it in matrices) / sum(math.prod(it.shape) for it in matrices)


_PREAMBLE: Final = 24  # magic, version and the two counts


def _planned(info: TensorInfo, kind: str) -> PlannedTensor:
    elements, size = _BLOCKS[kind]
    return PlannedTensor(info.name, info.shape, kind, math.prod(info.shape) // elements * size)


def _recipes(
    config: DecoderConfig,
    names: Names,
    reader: WeightReader,
    to: QuantizedTo,
    energies: Sequence[LayerEnergies],
    wide: Collection[Part],
) -> dict[str, _Recipe]:
    found = {info.name: _Recipe(_plain_type(info)) for info in reader.tensors.values()}
    scales = choose_scales(config, energies, STRENGTH[to])
    for layer, (energy, scale) in enumerate(zip(energies, scales, strict=True)):
        prefix = names.layer.format(layer)
        for name, recipe in _layer(config, names, energy, scale):
            info = reader.tensors.get(prefix + name)
            if info is None:
                continue  # a bias or a form of the matrices that this file does not have
            kind = found[info.name].type
            part = recipe.type
            if len(info.shape) > 1 and kind == "Q8_0" and to == "int4" and part not in wide:
                kind = "Q4_1"
            found[info.name] = _Recipe(kind, recipe.columns, recipe.rows, recipe.importance)
    return found


def _layer(config: DecoderConfig, names: Names, energy: LayerEnergies, scale: Scales) -> Iterator[tuple[str, _Recipe]]:
    """Tensors of a layer that change, by the name after its prefix; `type` is the name of the part here."""
    parts = names.parts
    yield parts["attention_norm"], _Recipe("norm", rows=scale.qkv)
    yield parts["ffn_norm"], _Recipe("norm", rows=scale.gate_up)

    queries, values = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    before_values = torch.ones(queries + values)
    of_values = {"q": None, "k": None, "v": scale.value, "qkv": torch.cat((before_values, scale.value))}
    before_up = torch.ones(config.ffn_size)
    # where gate and up are one tensor in the file, it has the name of `up`
    of_up = {"gate": None, "up": scale.down}
    if "gate_up" in parts:
        of_up = {"gate_up": torch.cat((before_up, scale.down))}
    inputs: tuple[tuple[Part, dict[str, torch.Tensor | None], torch.Tensor, torch.Tensor], ...] = (
        ("qkv", of_values, scale.qkv, energy.qkv),
        ("output", {"output": None}, scale.output, energy.output),
        ("gate_up", of_up, scale.gate_up, energy.gate_up),
        ("down", {"down": None}, scale.down, energy.down),
    )
    for part, members, columns, measured in inputs:
        for member, rows in members.items():
            if member not in parts:
                continue
            yield parts[member] + "weight", _Recipe(part, columns, rows, measured / columns.square())
            if rows is not None:
                yield parts[member] + "bias", _Recipe(part, rows=rows)


def _plain_type(info: TensorInfo) -> str:
    """How a tensor is stored that no layer's recipe changes: vectors in float32, matrices in 8 bits."""
    if len(info.shape) < 2:
        return "F32"
    return "F16" if info.shape[-1] % GROUP else "Q8_0"


def _raw_bands(reader: WeightReader, info: TensorInfo) -> Iterator[tuple[int, torch.Tensor]]:
    """Rows as they are stored, as float32, each band with the number of its first."""
    rows = info.shape[0]
    step = max(1, _BAND // max(1, math.prod(info.shape[1:])))
    for first in range(0, rows, step):
        values = torch.empty((min(step, rows - first), *info.shape[1:]))
        reader.read_into(info.name, values, first_row=first)
        yield first, values


def _bands(reader: WeightReader, info: TensorInfo, recipe: _Recipe, files: ModelFiles) -> Iterator[bytes]:
    for first, values in _raw_bands(reader, info):
        if recipe.rows is not None:
            values /= recipe.rows[first : first + len(values)].reshape(-1, *(1 for _ in info.shape[1:]))
        if recipe.columns is not None:
            values *= recipe.columns
        try:
            band = _encode(values, recipe)
        except BadRow as error:
            name, row = _not_finite(reader) or (info.name, first + error.row)
            raise BadModelFile(
                f"{files.name}: row {row} of the tensor '{name}' holds NaN, infinity or a value too large for {recipe.type}: "
                "the model cannot be quantized. Get the file again, or another one."
            ) from error
        yield band


def _not_finite(reader: WeightReader) -> tuple[str, int] | None:
    """Tensor and row of the first stored value that is not finite: what was measured with it spoils the scales of others."""
    for info in reader.tensors.values():
        for first, values in _raw_bands(reader, info):
            try:
                require_within(values, _LARGEST)
            except BadRow as error:
                return info.name, first + error.row
    return None


def _encode(values: torch.Tensor, recipe: _Recipe) -> bytes:
    if recipe.type == "Q8_0":
        return round_int8(values).blocks()
    if recipe.type == "Q4_1":
        return round_int4(values, recipe.importance).blocks()
    require_within(values, LARGEST_HALF if recipe.type == "F16" else _LARGEST)
    return bytes(values.to(torch.float16 if recipe.type == "F16" else torch.float32).numpy().tobytes())
