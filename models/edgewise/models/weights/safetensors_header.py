"""The header of a safetensors file and the index of a sharded model.

Source: the safetensors format description (u64 little-endian header length, JSON object padded with spaces, data). The file is
taken as hostile: the JSON is walked entry by entry with bounded pieces instead of being parsed as a whole (a hundred megabytes
of brackets would take gigabytes), and the tensors must fill the data section without overlap, hole or trailing bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, TypeGuard

from edgewise.core.errors import BadModelFile
from edgewise.models.weights.file import RangeFile

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library
MAX_TENSORS = 1 << 16
MAX_METADATA = 1 << 16
MAX_INDEX_BYTES = 16 << 20

# Bits of an element. Types that cannot be decoded are listed too, so that a file which has some is still checked as a whole.
DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

_SPACE = re.compile(r"[ \t\r\n]*")
_ENTRY = re.compile(r"\{[^{}]{0,4096}\}")
_MAX_RANK = 32


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Where a tensor lies: row-major shape, `offset` from the file's start."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


def parse_safetensors_header(file: RangeFile) -> dict[str, StoredRange]:
    """Read and check the header of an open file.

    Raises:
        BadModelFile: Damaged or hostile; the message names file and byte.
    """
    if file.size < 8:
        raise file.bad(0, f"the file has {file.size} bytes, the header's length alone takes 8")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise file.bad(0, f"a header of {length} bytes; at most {MAX_HEADER_BYTES} are allowed")
    if length > file.size - 8:
        raise file.bad(0, f"a header of {length} bytes, the file has only {file.size - 8} more")
    raw = file.read(8, length)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise file.bad(8 + error.start, "the header is not UTF-8") from error
    walk = _HeaderWalk(file, text, data_offset=8 + length)
    ranges = walk.walk()
    walk.check_layout(ranges)
    return {stored.name: stored for stored, _ in ranges}


def parse_index(file: RangeFile) -> dict[str, str]:
    """The weight map (tensor name -> shard file) of a model.safetensors.index.json.

    Raises:
        BadModelFile: Not such an index; the message names file and byte.
    """
    if file.size > MAX_INDEX_BYTES:
        raise file.bad(MAX_INDEX_BYTES, f"an index of {file.size} bytes; at most {MAX_INDEX_BYTES} are allowed")
    text = file.read(0, file.size)
    try:
        index = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        at = getattr(error, "pos", getattr(error, "start", 0))
        raise file.bad(at, f"not a JSON index: {error}") from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise file.bad(0, "the index has no 'weight_map' from tensor names to file names")
    return weight_map


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"the key {key!r} is there twice")
        made[key] = value
    return made


class _HeaderWalk:
    """Walks the JSON text `{"name": {...}, ...}` once. `pos` counts characters; errors name bytes."""

    def __init__(self, file: RangeFile, text: str, data_offset: int) -> None:
        self.file = file
        self.text = text
        self.pos = 0
        self.data_offset = data_offset

    def walk(self) -> list[tuple[StoredRange, int]]:
        """Every tensor and the position of its description."""
        if not self.text.startswith("{"):
            raise self.bad(0, "the header must start with '{'")
        ranges: list[tuple[StoredRange, int]] = []
        names: set[str] = set()
        for at in self.members("the header", MAX_TENSORS):
            name = self.string()
            if name in names:
                raise self.bad(at, f"the tensor '{name}' is there twice")
            names.add(name)
            self.expect(":")
            if name == "__metadata__":
                self.skip_metadata()
            else:
                ranges.append((self.tensor(name), at))
        if self.text[self.pos :].strip(" "):
            raise self.bad(self.pos, "the header goes on after its closing brace")
        return ranges

    def members(self, what: str, most: int) -> Iterator[int]:
        """Yield the position of each member of the object that starts at `pos`; the caller consumes the member."""
        self.expect("{")
        if self.peek() == "}":
            self.pos += 1
            return
        for _ in range(most):
            self.peek()
            yield self.pos
            if self.peek() == "}":
                self.pos += 1
                return
            self.expect(",")
        raise self.bad(self.pos, f"{what} has more than {most} entries")

    def peek(self) -> str:
        match = _SPACE.match(self.text, self.pos)
        self.pos = match.end() if match else self.pos
        return self.text[self.pos : self.pos + 1]

    def expect(self, mark: str) -> None:
        if self.peek() != mark:
            raise self.bad(self.pos, f"bad JSON: expected {mark!r}, found {self.text[self.pos : self.pos + 1]!r}")
        self.pos += 1

    def string(self) -> str:
        self.expect('"')
        try:
            value, self.pos = scanstring(self.text, self.pos, True)
        except json.JSONDecodeError as error:
            raise self.bad(error.pos, f"bad JSON: {error.msg}") from error
        return str(value)

    def skip_metadata(self) -> None:
        keys: set[str] = set()
        for at in self.members("__metadata__", MAX_METADATA):
            key = self.string()
            if key in keys:
                raise self.bad(at, f"the metadata key '{key}' is there twice")
            keys.add(key)
            self.expect(":")
            self.string()

    def tensor(self, name: str) -> StoredRange:
        self.peek()
        match = _ENTRY.match(self.text, self.pos)
        if match is None:
            raise self.bad(self.pos, f"the entry of tensor '{name}' is not a short JSON object")
        try:
            entry = json.loads(match.group(), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self.bad(self.pos, f"the entry of tensor '{name}' is bad JSON: {error}") from error
        stored = self.checked(name, entry)
        self.pos = match.end()
        return stored

    def checked(self, name: str, entry: dict[str, Any]) -> StoredRange:
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self.bad(self.pos, f"tensor '{name}' must have dtype, shape and data_offsets, and nothing else")
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            raise self.bad(self.pos, f"tensor '{name}' has the unknown dtype {dtype!r}")
        if not _is_sizes(shape) or len(shape) > _MAX_RANK:
            raise self.bad(self.pos, f"the shape of tensor '{name}' is not a list of at most {_MAX_RANK} sizes")
        if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self.bad(self.pos, f"the data_offsets of tensor '{name}' are not [begin, end]")
        bits = DTYPE_BITS[dtype]
        for size in shape:
            bits *= size
        begin, end = offsets
        if bits != 8 * (end - begin):
            raise self.bad(self.pos, f"tensor '{name}': {dtype}{shape} does not take {end - begin} bytes")
        if self.data_offset + end > self.file.size:
            missing = self.data_offset + end - self.file.size
            raise self.file.bad(self.file.size, f"the file ends inside tensor '{name}', {missing} bytes are missing")
        return StoredRange(name, tuple(shape), dtype, self.data_offset + begin, end - begin)

    def check_layout(self, ranges: list[tuple[StoredRange, int]]) -> None:
        """Tensors must follow each other byte by byte and end where the file ends."""
        expected = self.data_offset
        for stored, at in sorted(ranges, key=lambda pair: (pair[0].offset, pair[0].nbytes)):
            if stored.offset != expected:
                how = "overlaps its neighbour" if stored.offset < expected else "leaves a hole before it"
                begin, wanted = stored.offset - self.data_offset, expected - self.data_offset
                raise self.bad(at, f"tensor '{stored.name}' begins at data offset {begin} and {how}; expected {wanted}")
            expected += stored.nbytes
        if self.file.size != expected:
            extra = self.file.size - expected
            raise self.file.bad(expected, f"{extra} bytes after the last tensor belong to nothing")

    def byte(self, pos: int) -> int:
        return 8 + len(self.text[:pos].encode())

    def bad(self, pos: int, what: str) -> BadModelFile:
        return self.file.bad(self.byte(pos), what)


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)
