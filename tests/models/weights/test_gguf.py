"""The GGUF header parser: what it reads, and that hostile input is refused at the right byte."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgewise.core.errors import BadModelFile, StorageError
from edgewise.models.files import ModelFiles
from edgewise.models.weights import gguf as ours
from edgewise.models.weights.gguf import gguf_file, header_of, read_gguf_header
from edgewise.models.weights.gguf_types import ENCODINGS


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file_of(
    entries: list[bytes], infos: list[bytes], data: bytes = b"", *, version: int = 3, alignment: int = 32
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(entries)) + b"".join((*entries, *infos))
    return head + (bytes(-len(head) % alignment) + data if infos else b"")


GOOD = file_of([entry("a.key", 4, struct.pack("<I", 7))], [info("t", (4, 2))], bytes(32))


def write(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "0123abcd"  # stored under its digest
    path.write_bytes(raw)
    return path


def refusal(tmp_path: Path, raw: bytes) -> str:
    with pytest.raises(BadModelFile) as caught:
        read_gguf_header(write(tmp_path, raw), "model.gguf")
    assert caught.value.message.startswith("model.gguf, byte ")
    return caught.value.message


def test_a_header_written_by_the_gguf_package_reads_back(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint32("x.count", 3)
    writer.add_float32("x.base", 0.5)
    writer.add_bool("x.flag", True)
    writer.add_uint64("x.long", 2**63 + 1)
    writer.add_int8("x.small", -5)
    writer.add_array("x.words", ["", "zwei", "数字"])
    writer.add_array("x.numbers", [1, -2, 3])
    writer.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b.weight", np.zeros((5, 1, 7), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header = read_gguf_header(tmp_path / "m.gguf")
    assert header.version == 3
    assert header.get_str("general.architecture") == "llama"
    assert (header.get_int("x.count"), header.get_int("x.long"), header.get_int("x.small")) == (3, 2**63 + 1, -5)
    assert header.get_float("x.base") == 0.5
    assert header.get_bool("x.flag") is True
    assert header.get_strings("x.words") == ["", "zwei", "数字"]
    assert header.get_numbers("x.numbers") == (1, -2, 3)
    assert header.get_str("missing") is None
    shapes = {name: (tensor.shape, tensor.type, tensor.nbytes) for name, tensor in header.tensors.items()}
    assert shapes == {"a.weight": ((2, 3), "F32", 24), "b.weight": ((5, 1, 7), "F16", 70)}


def test_starter_header(starter_files: ModelFiles) -> None:
    header = header_of(starter_files)
    tokens = header.get_strings("tokenizer.ggml.tokens")
    assert tokens is not None
    assert (len(tokens), tokens[2], len(header.tensors)) == (49152, "<|im_end|>", 272)
    assert header.tensors["token_embd.weight"].shape == (49152, 576)
    assert repr(header) == "GGUFHeader('SmolLM2-135M-Instruct.Q4_1.gguf', v3, 33 keys, 272 tensors)"


def test_version_2_and_missing_last_padding_are_read(tmp_path: Path) -> None:
    raw = file_of([], [info("t", (5,))], bytes(20), version=2)
    assert read_gguf_header(write(tmp_path, raw)).version == 2


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    theirs = {
        kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind])
        for kind in gguf.GGMLQuantizationType
        if kind in gguf.GGML_QUANT_SIZES
    }
    assert ENCODINGS.items() <= theirs.items()


HUGE = 2**64 - 1
CASES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "byte 0"),
    "only the magic": (b"GGUF", "byte 4"),
    "wrong magic": (b"GGML" + GOOD[4:], "byte 0: not a GGUF file"),
    "version 1": (file_of([], [], version=1), "byte 4: GGUF version 1"),
    "version 4": (file_of([], [], version=4), "byte 4: GGUF version 4"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
    "tensor count": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), f"byte 8: {HUGE} tensors cannot fit"),
    "metadata count": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "byte 16"),
    "count above the limit": (
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 17, 0) + bytes((1 << 17) * 40),
        "byte 8: 131072 tensors; at most 65536",
    ),
    "key length": (file_of([struct.pack("<Q", HUGE)], []) + bytes(9), "byte 24"),
    "key longer than the file": (file_of([struct.pack("<Q", 1000) + b"a"], []) + bytes(9), "byte 32"),
    "key not UTF-8": (file_of([struct.pack("<Q", 2) + b"a\xff" + bytes(8)], []), "byte 33"),
    "empty key": (file_of([entry("", 4, bytes(4))], []), "empty"),
    "duplicate key": (file_of([entry("k", 4, bytes(4)), entry("k", 4, bytes(4))], []), "there twice"),
    "unknown value type": (file_of([entry("k", 99, bytes(4))], []), "byte 33: 'k' has the unknown type 99"),
    "bool of 2": (file_of([entry("k", 7, b"\x02")], []), "byte 37"),
    "value cut off": (file_of([entry("k", 10, bytes(4))], []), "byte 37"),
    "string length": (file_of([entry("k", 8, struct.pack("<Q", HUGE))], []), "byte 37"),
    "string not UTF-8": (file_of([entry("k", 8, struct.pack("<Q", 1) + b"\xff")], []), "not UTF-8"),
    "array count": (file_of([entry("k", 9, struct.pack("<IQ", 4, HUGE))], []), "claims"),
    "array count that overflows": (file_of([entry("k", 9, struct.pack("<IQ", 10, 1 << 61))], []), "claims"),
    "nested array": (file_of([entry("k", 9, struct.pack("<IQ", 9, 1) + bytes(16))], []), "nested"),
    "array of unknown type": (file_of([entry("k", 9, struct.pack("<IQ", 77, 1) + bytes(16))], []), "unknown type 77"),
    "string in array": (
        file_of([entry("k", 9, struct.pack("<IQ", 8, 2) + text("ab") + struct.pack("<Q", HUGE))], []),
        "byte 67: a string of 'k' needs",
    ),
    "strings cut off": (file_of([entry("k", 9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 9))], []), "a string of"),
    "alignment 0": (file_of([entry("general.alignment", 4, bytes(4))], []), "general.alignment"),
    "alignment 24": (file_of([entry("general.alignment", 4, struct.pack("<I", 24))], []), "general.alignment"),
    "alignment a string": (file_of([entry("general.alignment", 8, text("32"))], []), "general.alignment"),
    "alignment 2^31": (file_of([entry("general.alignment", 4, struct.pack("<I", 1 << 31))], []), "general.alignment"),
    "five dimensions": (file_of([], [info("t", (1, 1, 1, 1, 1))], bytes(32)), "5 dimensions"),
    "no dimensions": (file_of([], [info("t", ())], bytes(32)), "0 dimensions"),
    "dimension 0": (file_of([], [info("t", (4, 0))], bytes(32)), "shape (4, 0)"),
    "dimensions that overflow": (file_of([], [info("t", (1 << 32, 1 << 32))], bytes(32)), "the whole file has"),
    "tensor name": (file_of([], [struct.pack("<Q", 1 << 20)], bytes(64)), "a tensor name has 1048576 bytes"),
    "unnamed tensor": (file_of([], [info("", (8,))], bytes(32)), "without a name"),
    "tensor twice": (file_of([], [info("t", (8,)), info("t", (8,), offset=32)], bytes(64)), "there twice"),
    "unknown tensor type": (file_of([], [info("t", (8,), kind=4)], bytes(32)), "unknown tensor type 4"),
    "row not of whole blocks": (file_of([], [info("t", (33,), kind=2)], bytes(64)), "multiple of 32"),
    "misaligned": (file_of([], [info("t", (4,), offset=4)], bytes(32)), "data offset 4"),
    "overlap": (file_of([], [info("a", (16,)), info("b", (8,), offset=32)], bytes(64)), "overlaps"),
    "hole": (file_of([], [info("a", (8,)), info("b", (8,), offset=64)], bytes(96)), "hole"),
    "offset past the end": (file_of([], [info("t", (8,), offset=1 << 62)], bytes(32)), "hole"),
    "data cut off": (GOOD[:-1], f"byte {len(GOOD) - 1}: the file ends inside 't', 1 bytes are missing"),
    "no data at all": (GOOD[:-32], "the file ends inside 't'"),
    "trailing byte": (GOOD + b"\0", f"byte {len(GOOD)}: 1 bytes after the last tensor"),
    "trailing byte without tensors": (file_of([], []) + bytes(9), "byte 32: 1 bytes after the last tensor"),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_headers_are_refused_by_byte(tmp_path: Path, name: str) -> None:
    raw, expected = CASES[name]
    assert expected in refusal(tmp_path, raw)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    for size in range(len(GOOD)):
        refusal(tmp_path, GOOD[:size])
    assert read_gguf_header(write(tmp_path, GOOD)).get_int("a.key") == 7


def test_claims_of_a_sparse_giant_cost_no_memory(tmp_path: Path) -> None:
    """A file of 1 TiB (of holes) makes every count plausible; the header's own limits must hold."""
    claims = [
        entry("k", 9, struct.pack("<IQ", 8, 1 << 30)),  # 2^30 empty strings
        entry("k", 9, struct.pack("<IQ", 10, 1 << 36)),  # 512 GiB of numbers
        entry("k", 8, struct.pack("<Q", 1 << 39)),  # one string of 512 GiB
    ]
    for claim in claims:
        path = write(tmp_path, file_of([claim], []))
        with path.open("r+b") as file:
            file.truncate(1 << 40)
        tracemalloc.start()
        with pytest.raises(BadModelFile):
            read_gguf_header(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20


def test_string_walk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "MAX_STRINGS", 3)
    two = entry("k", 9, struct.pack("<IQ", 8, 2) + bytes(16))
    more = entry("m", 9, struct.pack("<IQ", 8, 2) + bytes(16))
    assert "above 3" in refusal(tmp_path, file_of([two, more], []))


def test_header_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "MAX_HEADER_BYTES", 64)
    assert "a header may have" in refusal(tmp_path, file_of([entry("k", 8, text("x" * 100))], []))


def test_wrong_types_are_named(tmp_path: Path) -> None:
    entries = [entry("n", 4, bytes(4)), entry("s", 8, text("x")), entry("f", 6, bytes(4)), entry("b", 7, b"\1")]
    entries += [entry("as", 9, struct.pack("<IQ", 8, 1) + text("\u20ac")), entry("an", 9, struct.pack("<IQ", 4, 0))]
    header = read_gguf_header(write(tmp_path, file_of(entries, [])), "m.gguf")
    wrong: list[tuple[Callable[[str], object], str]] = [
        (header.get_str, "n"),
        (header.get_int, "b"),
        (header.get_int, "as"),
        (header.get_float, "n"),
        (header.get_bool, "n"),
        (header.get_strings, "an"),
        (header.get_strings, "s"),
        (header.get_numbers, "as"),
        (header.get_numbers, "n"),
    ]
    for getter, key in wrong:
        with pytest.raises(BadModelFile, match=rf"^m\.gguf, byte \d+: '{key}' must be"):
            getter(key)


def test_vocabulary_that_is_not_utf8_is_refused_when_read(tmp_path: Path) -> None:
    bad = struct.pack("<IQQ", 8, 2, 1) + b"a" + struct.pack("<Q", 2) + b"b\xff"
    header = read_gguf_header(write(tmp_path, file_of([entry("k", 9, bad)], [])))
    with pytest.raises(BadModelFile, match="byte 67: string 1 of 'k' is not UTF-8"):
        header.get_strings("k")


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(BadModelFile, match="not a regular file"):
            read_gguf_header(path)
    with pytest.raises(StorageError, match="No such file"):
        read_gguf_header(tmp_path / "missing")


def test_a_gguf_model_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    two = ModelFiles(name="m", digest="", format="gguf", paths={"a.gguf": path, "b.GGUF": path})
    with pytest.raises(BadModelFile, match="this one has 2"):
        gguf_file(two)
