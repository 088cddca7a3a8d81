"""The header of a GGUF file (versions 2 and 3, little-endian): metadata and where each tensor lies.

Source: the GGUF specification of ggml. The file is taken as hostile: every count and length is checked against the bytes that
are left before anything is allocated, the header as a whole has a limit, and tensors must fill the data section without
overlap, hole or trailing bytes. Large arrays (vocabulary, merges) are walked once and decoded only when asked for.

No torch and no NumPy here: the service process reads tokenizer and template from this header.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgewise.core.errors import BadModelFile
from edgewise.models.files import ModelFiles
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.gguf_types import ARRAY, BOOL, ENCODINGS, MAGIC, SCALARS, STRING

MAX_HEADER_BYTES = 64 << 20  # the largest real vocabularies (256k tokens, 500k merges) need about 16 MiB
MAX_METADATA = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 21  # in all arrays together; bounds the walk to a fraction of a second
MAX_NAME_BYTES = 1 << 10
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_COUNTS = 8  # after magic and version: the numbers of tensors and of metadata entries
_MIN_METADATA_BYTES = 8 + 1 + 4 + 1  # key length, key, type, value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, dimensions' count, one dimension, type, offset
_READ_AHEAD = 1 << 20

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GGUFArray:
    """An array in the header, not decoded yet: `start` is the byte of its first element."""

    kind: int
    count: int
    start: int


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies. `shape` is row-major (the file's dimensions reversed); `offset` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class GGUFHeader:
    """A checked header.

    Attributes:
        name: What errors call the file.
        metadata: Value or undecoded array by key, in file order. Prefer the typed getters below.
        tensors: By name, in file order.
        data_offset: First byte of the data section.
        metadata_end: First byte after the metadata.
    """

    name: str
    version: int
    metadata: Mapping[str, Scalar | GGUFArray]
    tensors: Mapping[str, GGUFTensor]
    data_offset: int
    metadata_end: int
    _raw: bytearray
    _where: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"GGUFHeader({self.name!r}, v{self.version}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"

    def get_str(self, key: str) -> str | None:
        """The string under `key`, None if there is no such key; every getter raises BadModelFile on another type."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._mistyped(key, "a string")

    def get_int(self, key: str) -> int | None:
        value = self.metadata.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._mistyped(key, "an integer")

    def get_float(self, key: str) -> float | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, float):
            return value
        raise self._mistyped(key, "a float")

    def get_bool(self, key: str) -> bool | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._mistyped(key, "a bool")

    def get_strings(self, key: str) -> list[str] | None:
        """Decode an array of strings (UTF-8)."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, GGUFArray) or value.kind != STRING:
            raise self._mistyped(key, "an array of strings")
        return self._decode_strings(key, value)

    def get_numbers(self, key: str) -> tuple[int | float, ...] | None:
        """Decode an array of integers, floats or bools (as 0 and 1)."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, GGUFArray) or value.kind == STRING:
            raise self._mistyped(key, "an array of numbers")
        layout = SCALARS[value.kind][1].format
        return struct.unpack_from(f"<{value.count}{layout[1:]}", self._raw, value.start)

    def without_tensors(self) -> bytes:
        """A GGUF file with this metadata and no tensors: tokenizer and chat template without weights."""
        counts = _U64.pack(0) + _U64.pack(len(self.metadata))
        return bytes(self._raw[:_COUNTS]) + counts + bytes(self._raw[_COUNTS + len(counts) : self.metadata_end])

    def _decode_strings(self, key: str, array: GGUFArray) -> list[str]:
        strings: list[str] = []
        raw, position, unpack = bytes(self._raw), array.start, _U64.unpack_from
        try:
            for _ in range(array.count):
                start = position + 8
                position = start + unpack(raw, position)[0]
                strings.append(raw[start:position].decode())
        except UnicodeDecodeError as error:
            what = f"string {len(strings)} of '{key}' is not UTF-8"
            raise BadModelFile(f"{self.name}, byte {start + error.start}: {what}") from error
        return strings

    def _mistyped(self, key: str, wanted: str) -> BadModelFile:
        return BadModelFile(f"{self.name}, byte {self._where.get(key, 0)}: '{key}' must be {wanted}")


def read_gguf_header(path: Path, name: str | None = None) -> GGUFHeader:
    """Read and check the header of the GGUF file at `path`; `name` is what errors call it.

    Raises:
        BadModelFile: Damaged, hostile or of a version other than 2 and 3; the message names file and byte.
        StorageError: The file cannot be read.
    """
    file = RangeFile(path, name or path.name)
    try:
        return parse_gguf_header(file)
    finally:
        file.close()


def parse_gguf_header(file: RangeFile) -> GGUFHeader:
    """`read_gguf_header` of a file that is open already, and stays open."""
    return _HeaderParser(file).parse()


def header_of(files: ModelFiles) -> GGUFHeader:
    """The header of a GGUF model.

    Raises:
        BadModelFile: See `read_gguf_header`; also when the model has not exactly one .gguf file.
    """
    name, path = gguf_file(files)
    return read_gguf_header(path, name)


def gguf_file(files: ModelFiles) -> tuple[str, Path]:
    """Logical name and path of a GGUF model's one file; BadModelFile if there is not exactly one."""
    found = [(name, path) for name, path in files.paths.items() if name.lower().endswith(".gguf")]
    if len(found) != 1:
        raise BadModelFile(f"{files.name}, byte 0: a GGUF model is one .gguf file, this one has {len(found)}")
    return found[0]


class _HeaderParser:
    """Walks the header once, front to back. `pos` is the byte that is read next."""

    def __init__(self, file: RangeFile) -> None:
        self.file = file
        self.raw = bytearray()
        self.pos = 0
        self.limit = min(file.size, MAX_HEADER_BYTES)
        self.strings_left = MAX_STRINGS
        self.where: dict[str, int] = {}

    def parse(self) -> GGUFHeader:
        version, num_tensors, num_metadata = self._preamble()
        metadata = self._metadata(num_metadata)
        metadata_end = self.pos
        alignment = self._alignment(metadata)
        infos = [self._tensor_info() for _ in range(num_tensors)]
        data_offset = self.pos + -self.pos % alignment
        if infos and data_offset > self.file.size:
            raise self.file.bad(self.file.size, "the file ends before its tensors")
        self._check_layout(infos, data_offset, alignment)
        del self.raw[self.pos :]
        tensors = {info.name: _shifted(info, data_offset) for info, _ in infos}
        return GGUFHeader(self.file.name, version, metadata, tensors, data_offset, metadata_end, self.raw, self.where)

    # --- primitives ---

    def _need(self, count: int, what: str) -> int:
        """Make `count` bytes available and step over them; returns where they start."""
        start, end = self.pos, self.pos + count
        if end > self.limit:
            if end > self.file.size:
                raise self.file.bad(start, f"{what} needs {count} bytes, the file has {self.file.size - start} left")
            raise self.file.bad(start, f"{what} ends past the {MAX_HEADER_BYTES >> 20} MiB that a header may have")
        if end > len(self.raw):
            have = len(self.raw)
            goal = min(self.limit, max(end, 2 * have, _READ_AHEAD))
            self.raw += self.file.read(have, goal - have)
        self.pos = end
        return start

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.raw, self._need(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.raw, self._need(8, what))[0]
        return value

    def _text(self, what: str, max_bytes: int = MAX_HEADER_BYTES) -> str:
        length = self._u64(f"the length of {what}")
        if length > max_bytes:
            raise self.file.bad(self.pos - 8, f"{what} has {length} bytes, at most {max_bytes} are allowed")
        start = self._need(length, what)
        try:
            return self.raw[start : self.pos].decode()
        except UnicodeDecodeError as error:
            raise self.file.bad(start + error.start, f"{what} is not UTF-8") from error

    # --- parts of the header ---

    def _preamble(self) -> tuple[int, int, int]:
        start = self._need(4, "the magic number")
        if self.raw[start : start + 4] != MAGIC:
            raise self.file.bad(0, "not a GGUF file (it does not start with 'GGUF')")
        version = self._u32("the version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            big_endian = " (a big-endian file)" if swapped in (2, 3) else ""
            raise self.file.bad(4, f"GGUF version {version}{big_endian}; little-endian versions 2 and 3 can be read")
        num_tensors = self._count("tensors", MAX_TENSORS, _MIN_TENSOR_BYTES)
        num_metadata = self._count("metadata entries", MAX_METADATA, _MIN_METADATA_BYTES)
        return version, num_tensors, num_metadata

    def _count(self, what: str, most: int, min_bytes: int) -> int:
        count = self._u64(f"the number of {what}")
        left = self.file.size - self.pos
        if count * min_bytes > left:
            raise self.file.bad(self.pos - 8, f"{count} {what} cannot fit in the {left} bytes that are left")
        if count > most:
            raise self.file.bad(self.pos - 8, f"{count} {what}; at most {most} are allowed")
        return count

    def _metadata(self, count: int) -> dict[str, Scalar | GGUFArray]:
        metadata: dict[str, Scalar | GGUFArray] = {}
        for _ in range(count):
            at = self.pos
            key = self._text("a metadata key", MAX_NAME_BYTES)
            if not key or key in metadata:
                raise self.file.bad(at, f"the metadata key {key!r} is {'there twice' if key else 'empty'}")
            metadata[key] = self._value(key)
            self.where[key] = at
        return metadata

    def _value(self, key: str) -> Scalar | GGUFArray:
        at = self.pos
        kind = self._u32(f"the type of '{key}'")
        if kind == STRING:
            return self._text(f"'{key}'")
        if kind == ARRAY:
            return self._array(key)
        if kind not in SCALARS:
            raise self.file.bad(at, f"'{key}' has the unknown type {kind}")
        layout = SCALARS[kind][1]
        value: int | float = layout.unpack_from(self.raw, self._need(layout.size, f"'{key}'"))[0]
        return self._bool(key, value) if kind == BOOL else value

    def _bool(self, key: str, value: int | float) -> bool:
        if value not in (0, 1):
            raise self.file.bad(self.pos - 1, f"'{key}' is a bool with the value {value}")
        return value == 1

    def _array(self, key: str) -> GGUFArray:
        at = self.pos
        kind = self._u32(f"the element type of '{key}'")
        if kind != STRING and kind not in SCALARS:
            raise self.file.bad(
                at, f"'{key}' is an array of the {'nested' if kind == ARRAY else 'unknown'} type {kind}"
            )
        count = self._u64(f"the length of '{key}'")
        size = 8 if kind == STRING else SCALARS[kind][1].size
        left = self.file.size - self.pos
        if count * size > left:
            raise self.file.bad(self.pos - 8, f"'{key}' claims {count} elements, only {left} bytes are left")
        start = self.pos
        if kind == STRING:
            self._skip_strings(key, count)
        else:
            self._need(count * size, f"'{key}'")
        return GGUFArray(kind, count, start)

    def _skip_strings(self, key: str, count: int) -> None:
        """Step over `count` strings; the inner loop runs a hundred thousand times for a real vocabulary."""
        if count > self.strings_left:
            raise self.file.bad(self.pos - 8, f"'{key}' brings the strings in arrays above {MAX_STRINGS}")
        self.strings_left -= count
        what = f"a string of '{key}'"
        unpack, raw, position = _U64.unpack_from, self.raw, self.pos
        for _ in range(count):
            if position + 8 > len(raw):
                self.pos = position
                self._need(8, what)
            length = unpack(raw, position)[0]
            position += 8 + length
            if position > len(raw):
                self.pos = position - length
                self._need(length, what)
        self.pos = position

    def _alignment(self, metadata: Mapping[str, Scalar | GGUFArray]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        fits = isinstance(value, int) and not isinstance(value, bool) and 8 <= value <= MAX_ALIGNMENT
        if not isinstance(value, int) or not fits or value & (value - 1):
            at = self.where["general.alignment"]
            raise self.file.bad(at, f"general.alignment must be a power of two from 8 to {MAX_ALIGNMENT}")
        return value

    def _tensor_info(self) -> tuple[GGUFTensor, int]:
        """One tensor, its offset still relative to the data section, and where its description lies."""
        at = self.pos
        name = self._text("a tensor name", MAX_NAME_BYTES)
        if not name:
            raise self.file.bad(at, "a tensor without a name")
        rank = self._u32(f"the number of dimensions of '{name}'")
        if not 1 <= rank <= MAX_DIMENSIONS:
            raise self.file.bad(self.pos - 4, f"'{name}' has {rank} dimensions, 1 to {MAX_DIMENSIONS} are allowed")
        dims = struct.unpack_from(f"<{rank}Q", self.raw, self._need(8 * rank, f"the dimensions of '{name}'"))
        kind = self._u32(f"the type of '{name}'")
        if kind not in ENCODINGS:
            raise self.file.bad(self.pos - 4, f"'{name}' has the unknown tensor type {kind}")
        encoding, block, block_bytes = ENCODINGS[kind]
        elements = 1
        for dim in dims:
            elements *= dim
        if elements == 0 or dims[0] % block:
            raise self.file.bad(at, f"'{name}' has the shape {dims}, rows of {encoding} hold a multiple of {block}")
        nbytes = elements // block * block_bytes
        if nbytes > self.file.size:
            raise self.file.bad(at, f"'{name}' needs {nbytes} bytes, the whole file has {self.file.size}")
        offset = self._u64(f"the offset of '{name}'")
        return GGUFTensor(name, tuple(reversed(dims)), encoding, offset, nbytes), at

    def _check_layout(self, infos: list[tuple[GGUFTensor, int]], data_offset: int, alignment: int) -> None:
        """Tensors lie one after the other, each padded to the alignment; the last one's padding may be missing."""
        expected, last_end, names = 0, 0, set[str]()
        for tensor, at in sorted(infos, key=lambda info: info[0].offset):
            if tensor.name in names:
                raise self.file.bad(at, f"the tensor '{tensor.name}' is there twice")
            names.add(tensor.name)
            if tensor.offset != expected:
                how = "overlaps its neighbour" if tensor.offset < expected else "leaves a hole before it"
                rule = f"{how} or is not aligned to {alignment}: expected {expected}"
                raise self.file.bad(at, f"'{tensor.name}' at data offset {tensor.offset} {rule}")
            last_end = tensor.offset + tensor.nbytes
            if data_offset + last_end > self.file.size:
                missing = data_offset + last_end - self.file.size
                raise self.file.bad(
                    self.file.size, f"the file ends inside '{tensor.name}', {missing} bytes are missing"
                )
            expected = last_end + -last_end % alignment
        if self.file.size > data_offset + expected:
            extra = self.file.size - data_offset - expected
            raise self.file.bad(data_offset + expected, f"{extra} bytes after the last tensor belong to nothing")


def _shifted(tensor: GGUFTensor, by: int) -> GGUFTensor:
    return GGUFTensor(tensor.name, tensor.shape, tensor.type, tensor.offset + by, tensor.nbytes)
