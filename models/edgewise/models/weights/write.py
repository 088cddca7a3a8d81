"""Writers of small safetensors and GGUF files, for tiny models and tests. Tensors are held in memory.

Sources: the safetensors format description (u64 header length, JSON header, data) and the GGUF v3 specification.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.models.weights.gguf_types import ENCODINGS, MAGIC

GGUF_ALIGNMENT = 32
_TYPE_CODES = {name: code for code, (name, _, _) in ENCODINGS.items()}

# A metadata value: str, bool, int (written as u32), float (f32), or a non-empty list of str, int (i32) or float (f32).
GGUFValue = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """An encoded tensor: row-major `shape`, the format's own name of the encoding in `type`, and the bytes."""

    name: str
    shape: tuple[int, ...]
    type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """An encoded tensor whose bytes are written later."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int


def write_safetensors(path: Path, tensors: Iterable[StoredTensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write one safetensors file; tensors lie in the given order without holes."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    chunks: list[bytes] = []
    offset = 0
    for tensor in tensors:
        end = offset + len(tensor.data)
        header[tensor.name] = {"dtype": tensor.type, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        chunks.append(tensor.data)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join((struct.pack("<Q", len(text)), text, *chunks)))


def write_gguf(path: Path, metadata: Mapping[str, GGUFValue], tensors: Sequence[StoredTensor]) -> None:
    """Write one GGUF v3 file (little-endian, alignment 32)."""
    entries = b"".join(_gguf_string(key) + _gguf_value(value) for key, value in metadata.items())
    planned = [PlannedTensor(tensor.name, tensor.shape, tensor.type, len(tensor.data)) for tensor in tensors]
    body = [gguf_header(entries, len(metadata), planned)]
    for tensor in tensors:
        body += [tensor.data, bytes(-len(tensor.data) % GGUF_ALIGNMENT)]
    path.write_bytes(b"".join(body))


def gguf_header(
    metadata: bytes, entries: int, tensors: Sequence[PlannedTensor], alignment: int = GGUF_ALIGNMENT
) -> bytes:
    """Everything of a GGUF v3 file before the data of its tensors, which follow in this order, each padded to `alignment`.

    Args:
        metadata: So many encoded entries, one after the other.
    """
    parts = [MAGIC, struct.pack("<IQQ", 3, len(tensors), entries), metadata]
    offset = 0
    for tensor in tensors:
        dims = tuple(reversed(tensor.shape))  # GGUF counts dimensions from the fastest one
        parts.append(_gguf_string(tensor.name))
        parts.append(struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, _TYPE_CODES[tensor.type], offset))
        offset += tensor.nbytes + -tensor.nbytes % alignment
    header = b"".join(parts)
    return header + bytes(-len(header) % alignment)


def _gguf_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _gguf_value(value: GGUFValue) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _gguf_string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", 9) + _gguf_array(value)


def _gguf_array(items: Sequence[str] | Sequence[int] | Sequence[float]) -> bytes:
    if isinstance(items[0], str):
        strings = b"".join(_gguf_string(str(item)) for item in items)
        return struct.pack("<IQ", 8, len(items)) + strings
    code, kind = ("i", 5) if isinstance(items[0], int) else ("f", 6)
    return struct.pack(f"<IQ{len(items)}{code}", kind, len(items), *items)
