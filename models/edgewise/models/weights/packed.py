"""Matrices of quantized safetensors checkpoints: which stored tensors make one, and how a part of it is decoded.

A value is (q - zero) * scale, rounded once to the scale's type, which makes it equal bit for bit to what AutoAWQ, AutoGPTQ,
GPTQModel and compressed-tensors compute: q - zero is a small whole number, exact in every float type involved.

GPTQ packs eight 4-bit weights of one output along the inputs, AWQ those of eight outputs along the outputs, in the order 0 2 4 6
1 3 5 7, compressed-tensors along the inputs of a row. Both of the former keep inputs as rows, so a row of ours is a column
there and is read in strips.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.core.errors import BadModelFile
from edgewise.models.weights.safetensors import SafetensorsReader

Floats = NDArray[np.float32]
Span = tuple[int, int]  # [first, last)

PIECE_ELEMENTS: Final = 1 << 18  # 1 MiB of float32; with raw words and intermediates about 4 MiB of scratch
_STRIP: Final = 2048  # outputs of a piece where they are columns in the file
_WORD: Final = 8  # 4-bit weights in a 32-bit word
_AWQ_NIBBLES: Final = np.array((0, 4, 1, 5, 2, 6, 3, 7))  # which nibble of a word holds its j-th output


class Matrix(Protocol):
    """A matrix [outputs, inputs] that is stored in parts.

    Attributes:
        shape: (outputs, inputs).
        scale_type: The file's name of the scale's type, to which values are rounded.
    """

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def scale_type(self) -> str: ...

    def pieces(self, rows: Span) -> Iterator[tuple[Span, Span]]:
        """Cut `rows` into parts (rows, columns) that are cheap to read and small."""

    def decode(self, source: SafetensorsReader, rows: Span, columns: Span) -> Floats:
        """[rows, columns] float32, not rounded yet.

        Raises:
            BadModelFile: The file is shorter than it was, or a group index leads nowhere.
        """


@dataclass(frozen=True, slots=True)
class ColumnPacked:
    """A matrix of GPTQ or AWQ. Parts are named `prefix` + qweight, qzeros, scales and perhaps g_idx.

    Attributes:
        along_inputs: Words hold eight inputs of one output (GPTQ) rather than eight outputs of one input (AWQ).
        group_size: Inputs that share scale and zero, where no g_idx says which.
        groups: Number of rows of scales and zeros.
        has_index: Whether g_idx, the group of each input, is there.
        zero_offset: Added to the stored zeros.
    """

    prefix: str
    shape: tuple[int, int]
    scale_type: str
    along_inputs: bool
    group_size: int
    groups: int
    has_index: bool
    zero_offset: int

    def pieces(self, rows: Span) -> Iterator[tuple[Span, Span]]:
        strip = min(_STRIP, rows[1] - rows[0])
        band = max(_WORD, PIECE_ELEMENTS // max(1, strip) // _WORD * _WORD)
        for part in _cut(rows, _STRIP):
            for columns in _cut((0, self.shape[1]), band):
                yield part, columns

    def decode(self, source: SafetensorsReader, rows: Span, columns: Span) -> Floats:
        values = self._weights(source, rows, columns)
        group, used = self._group_of(source, columns)
        zeros = self._outputs_of_words(source.read_block(self.prefix + "qzeros", used, _words(rows)), rows)
        scales = source.read_block(self.prefix + "scales", used, rows)
        values -= (zeros.astype(np.float32) + np.float32(self.zero_offset))[group]
        values *= scales[group]
        turned: Floats = values.T
        return turned

    def _weights(self, source: SafetensorsReader, rows: Span, columns: Span) -> Floats:
        """[columns, rows] from 0 to 15."""
        name = self.prefix + "qweight"
        if not self.along_inputs:
            spread = self._outputs_of_words(source.read_block(name, columns, _words(rows)), rows)
            return np.asarray(spread, dtype=np.float32)
        words = source.read_block(name, _words(columns), rows).view(np.uint32)
        nibbles = _nibbles(words).transpose(0, 2, 1).reshape(-1, words.shape[1])
        start = columns[0] % _WORD
        return np.asarray(nibbles[start : start + columns[1] - columns[0]], dtype=np.float32)

    def _outputs_of_words(self, words: NDArray[Any], rows: Span) -> NDArray[np.uint8]:
        """[n, words] of eight outputs each -> [n, rows]."""
        nibbles = _nibbles(words.view(np.uint32))
        if not self.along_inputs:
            nibbles = nibbles[..., _AWQ_NIBBLES]
        start = rows[0] % _WORD
        return nibbles.reshape(words.shape[0], -1)[:, start : start + rows[1] - rows[0]]

    def _group_of(self, source: SafetensorsReader, columns: Span) -> tuple[NDArray[np.int64], Span]:
        """Group of each column, relative to the first group used, and which groups those are."""
        if self.has_index:
            name = self.prefix + "g_idx"
            group = source.read_block(name, (0, 1), columns)[0].astype(np.int64)
            if group.size and not 0 <= group.min() <= group.max() < self.groups:
                raise BadModelFile(f"{source.file_of(name)}: '{name}' names a group outside 0 to {self.groups - 1}.")
        else:
            group = np.arange(*columns) // self.group_size
        first, last = int(group.min()), int(group.max()) + 1
        return group - first, (first, last)


@dataclass(frozen=True, slots=True)
class RowStored:
    """A matrix of compressed-tensors or of "fp8". Parts are named `prefix` + weight (or weight_packed), `scale_part`,
    weight_zero_point.

    Attributes:
        bits: Of a packed weight, 4 or 8; None where the weight is stored as int8 or fp8.
        scales: Rows and columns of the scale.
        block: Outputs and inputs that share a scale.
        zeros: None without zero points; "plain", or "packed" along the outputs.
        scale_part: "weight_scale", or "weight_scale_inv", which is multiplied with all the same.
    """

    prefix: str
    shape: tuple[int, int]
    scale_type: str
    bits: int | None
    scales: tuple[int, int]
    block: tuple[int, int]
    zeros: str | None
    scale_part: str = "weight_scale"

    def pieces(self, rows: Span) -> Iterator[tuple[Span, Span]]:
        band = PIECE_ELEMENTS // _WORD * _WORD
        for part in _cut(rows, max(1, PIECE_ELEMENTS // max(1, self.shape[1]))):
            for columns in _cut((0, self.shape[1]), band):
                yield part, columns

    def decode(self, source: SafetensorsReader, rows: Span, columns: Span) -> Floats:
        values = self._weights(source, rows, columns)
        down, across = _owners(rows, self.block[0]), _owners(columns, self.block[1])
        used = (int(down[0]), int(down[-1]) + 1), (int(across[0]), int(across[-1]) + 1)
        which = np.ix_(down - down[0], across - across[0])
        if self.zeros is not None:
            values -= self._zero_points(source, *used)[which]
        values *= source.read_block(self.prefix + self.scale_part, *used)[which]
        return values

    def fp8_rows(self, source: SafetensorsReader, rows: Span) -> tuple[NDArray[np.uint8], torch.Tensor]:
        """Stored fp8 [rows, inputs] and scales [rows] float32, of a matrix with one scale for all inputs of a row."""
        inputs = self.shape[1]
        codes = source.read_bytes(self.prefix + "weight", rows, (0, inputs)).reshape(-1, inputs)
        down = _owners(rows, self.block[0])
        used = int(down[0]), int(down[-1]) + 1
        scale = source.read_block(self.prefix + self.scale_part, used, (0, 1))[down - down[0], 0]
        return codes, torch.from_numpy(np.ascontiguousarray(scale, np.float32))

    def _weights(self, source: SafetensorsReader, rows: Span, columns: Span) -> Floats:
        if self.bits is None:
            return source.read_block(self.prefix + "weight", rows, columns).astype(np.float32)
        per_word = 32 // self.bits
        words = columns[0] // per_word, -(-columns[1] // per_word)
        values = _signed(source.read_block(self.prefix + "weight_packed", rows, words), self.bits)
        start = columns[0] % per_word
        return values[:, start : start + columns[1] - columns[0]]

    def _zero_points(self, source: SafetensorsReader, rows: Span, columns: Span) -> Floats:
        name = self.prefix + "weight_zero_point"
        if self.zeros == "plain" or self.bits is None:
            return source.read_block(name, rows, columns).astype(np.float32)
        per_word = 32 // self.bits
        words = source.read_block(name, (rows[0] // per_word, -(-rows[1] // per_word)), columns)
        start = rows[0] % per_word
        values: Floats = _signed(np.ascontiguousarray(words.T), self.bits).T
        return values[start : start + rows[1] - rows[0]]


def _cut(span: Span, step: int) -> Iterator[Span]:
    for first in range(span[0], span[1], step):
        yield first, min(first + step, span[1])


def _words(span: Span) -> Span:
    return span[0] // _WORD, -(-span[1] // _WORD)


def _owners(span: Span, size: int) -> NDArray[np.int64]:
    return np.arange(*span) // size


def _nibbles(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """[..., n] -> [..., n, 8], from the lowest nibble to the highest."""
    octets = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8).reshape(*words.shape, 4)
    return np.stack((octets & 15, octets >> 4), axis=-1).reshape(*words.shape, _WORD)


def _signed(words: NDArray[Any], bits: int) -> Floats:
    """[n, words] of offset-binary weights -> [n, words * 32 / bits] float32."""
    words = words.view(np.uint32)
    if bits == 4:
        values = _nibbles(words).reshape(words.shape[0], -1).astype(np.float32)
    else:
        octets = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
        values = octets.reshape(words.shape[0], -1).astype(np.float32)
    values -= np.float32(1 << (bits - 1))
    return values
