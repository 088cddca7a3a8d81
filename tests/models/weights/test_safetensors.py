"""The safetensors header and the shard index: hostile input is refused at the right byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from edgewise.core.errors import BadModelFile, StorageError
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.models.weights import safetensors_header
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.safetensors import INDEX, SafetensorsReader
from edgewise.models.weights.safetensors_header import StoredRange, parse_safetensors_header


def file_of(header: str | bytes, data: bytes = b"") -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw)) + raw + data


def tensor(dtype: str = "F32", shape: str = "[2]", offsets: str = "[0,8]") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


GOOD_HEADER = f'{{"__metadata__":{{"format":"pt","{{}}":"}}"}},"a":{tensor()},"é":{tensor(offsets="[8,16]")}}}  '
GOOD = file_of(GOOD_HEADER, bytes(16))


def parse(tmp_path: Path, raw: bytes) -> dict[str, StoredRange]:
    path = tmp_path / "0123abcd"
    path.write_bytes(raw)
    file = RangeFile(path, "model.safetensors")
    try:
        return parse_safetensors_header(file)
    finally:
        file.close()


def test_a_good_header(tmp_path: Path) -> None:
    start = len(GOOD) - 16
    first, second = StoredRange("a", (2,), "F32", start, 8), StoredRange("é", (2,), "F32", start + 8, 8)
    assert parse(tmp_path, GOOD) == {"a": first, "é": second}
    assert parse(tmp_path, file_of("{}")) == {}


def one(entry: str, data: bytes = bytes(8)) -> bytes:
    return file_of(f'{{"a":{entry}}}', data)


CASES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "byte 0: the file has 0 bytes"),
    "length 2^62": (struct.pack("<Q", 1 << 62), "byte 0: a header of 4611686018427387904 bytes; at most 100000000"),
    "length over 100 MB": (struct.pack("<Q", 100_000_001), "at most 100000000"),
    "length past the end": (struct.pack("<Q", 9) + b"{}", "the file has only 2 more"),
    "no brace": (file_of(" {}"), "byte 8: the header must start"),
    "not UTF-8": (file_of(b'{"\xff":1}'), "byte 10: the header is not UTF-8"),
    "bad JSON": (file_of('{"a" 1}'), "byte 13: bad JSON"),
    "JSON cut off": (file_of('{"a":'), "byte 13"),
    "JSON goes on": (file_of("{} x"), "byte 10: the header goes on"),
    "padding of newlines": (file_of("{}\n"), "the header goes on"),
    "array": (file_of("[]"), "must start"),
    "nested brackets": (file_of('{"a":' + "[" * 100_000 + "}"), "byte 13: the entry"),
    "nested objects": (one('{"dtype":{"x":1},"shape":[2],"data_offsets":[0,8]}'), "entry of tensor 'a'"),
    "control character in a name": (file_of('{"a\n":1}'), "bad JSON"),
    "name not closed": (file_of('{"a'), "bad JSON"),
    "duplicate tensor": (file_of(f'{{"a":{tensor()},"a":{tensor()}}}', bytes(8)), "'a' is there twice"),
    "duplicate metadata": (file_of('{"__metadata__":{"x":"1","x":"2"}}'), "'x' is there twice"),
    "metadata of numbers": (file_of('{"__metadata__":{"x":1}}'), "bad JSON"),
    "duplicate field": (one('{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}'), "there twice"),
    "field missing": (one('{"dtype":"F32","shape":[2]}'), "must have dtype"),
    "field too many": (one('{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}'), "nothing else"),
    "unknown dtype": (one(tensor("F33")), "unknown dtype 'F33'"),
    "dtype a number": (one('{"dtype":1,"shape":[2],"data_offsets":[0,8]}'), "unknown dtype 1"),
    "negative size": (one(tensor(shape="[-2]")), "the shape"),
    "size true": (one(tensor(shape="[true,2]")), "the shape"),
    "size 2.0": (one(tensor(shape="[2.0]")), "the shape"),
    "size 2^63": (one(tensor(shape="[9223372036854775808]")), "the shape"),
    "size of 5000 digits": (one(tensor(shape="[" + "9" * 4050 + "]")), "byte 13"),
    "shape a number": (one(tensor(shape="2")), "the shape"),
    "40 dimensions": (one(tensor(shape="[" + "1," * 39 + "2]")), "at most 32 sizes"),
    "offsets reversed": (one(tensor(offsets="[8,0]")), "[begin, end]"),
    "three offsets": (one(tensor(offsets="[0,8,8]")), "[begin, end]"),
    "shape that overflows": (one(tensor(shape="[4611686018427387904,4]")), "does not take 8 bytes"),
    "shape against bytes": (one(tensor(shape="[3]")), "F32[3] does not take 8 bytes"),
    "past the end": (one(tensor(shape="[3]", offsets="[0,12]")), "ends inside tensor 'a', 4 bytes are missing"),
    "hole before": (one(tensor(offsets="[4,12]"), bytes(12)), "leaves a hole"),
    "overlap": (file_of(f'{{"a":{tensor()},"b":{tensor(offsets="[4,12]")}}}', bytes(12)), "overlaps"),
    "same range twice": (file_of(f'{{"a":{tensor()},"b":{tensor()}}}', bytes(8)), "overlaps"),
    "trailing byte": (GOOD + b"\0", f"byte {len(GOOD)}: 1 bytes after the last tensor"),
    "data without tensors": (file_of("{}", bytes(3)), "byte 10: 3 bytes after"),
    "last byte missing": (GOOD[:-1], f"byte {len(GOOD) - 1}: the file ends inside tensor 'é'"),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_headers_are_refused_by_byte(tmp_path: Path, name: str) -> None:
    raw, expected = CASES[name]
    with pytest.raises(BadModelFile) as caught:
        parse(tmp_path, raw)
    assert caught.value.message.startswith("model.safetensors, byte ")
    assert expected in caught.value.message


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    for size in range(len(GOOD)):
        with pytest.raises(BadModelFile):
            parse(tmp_path, GOOD[:size])


def test_bytes_are_counted_behind_other_characters(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="byte 15: "):
        parse(tmp_path, file_of('{"éé"x'))


def test_numbers_of_entries_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", 1)
    with pytest.raises(BadModelFile, match="more than 1 entries"):
        parse(tmp_path, file_of(f'{{"a":{tensor()},"b":{tensor(offsets="[8,16]")}}}', bytes(16)))


# --- index ---


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "m", shards=2)


def rewrite(folder: Path, change: dict[str, str]) -> ModelFiles:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= change
    (folder / INDEX).write_text(json.dumps(index))
    return local_files(folder)


@pytest.mark.parametrize(
    ("shard", "expected"),
    [
        ("../m/model-00001-of-00002.safetensors", "lies outside the model's folder"),
        ("/etc/passwd", "lies outside the model's folder"),
        ("..\\x.safetensors", "lies outside the model's folder"),
        ("model-00003-of-00002.safetensors", "is missing"),
        ("config.json", r"not a \.safetensors file"),
    ],
)
def test_shards_are_only_the_models_own_files(sharded: Path, shard: str, expected: str) -> None:
    with pytest.raises(BadModelFile, match=rf"^{INDEX}, byte 0: .*{expected}"):
        open_weights(rewrite(sharded, {"lm_head.weight": shard}))


def test_a_tensor_must_be_where_the_index_says(sharded: Path) -> None:
    files = rewrite(sharded, {"new.weight": "model-00001-of-00002.safetensors"})
    with pytest.raises(BadModelFile, match=r"^model-00001.*'new\.weight' is missing"):
        open_weights(files)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"weight_map":{"a":1}}', '{"weight_map":[]}', "[" * 100_000, '{"weight_map":{"a":"b","a":"c"}}'],
)
def test_damaged_indexes_are_refused(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    with pytest.raises(BadModelFile, match=rf"^{INDEX}, byte \d+: "):
        open_weights(local_files(sharded))


def test_an_index_has_a_size_limit(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_header, "MAX_INDEX_BYTES", 10)
    with pytest.raises(BadModelFile, match="at most 10 are allowed"):
        open_weights(local_files(sharded))


def test_a_damaged_second_shard_closes_the_first(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").write_bytes(b"x" * 20)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BadModelFile, match=r"^model-00002"):
        open_weights(local_files(sharded))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_which_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "0123"
    path.write_bytes(GOOD)

    def files(*names: str) -> ModelFiles:
        return ModelFiles(name="m", digest="", format="safetensors", paths=dict.fromkeys(names, path))

    good = [["model.safetensors"], ["weights.safetensors"], ["model.safetensors", "other.safetensors"]]
    bad: list[list[str]] = [[], ["a.safetensors", "b.safetensors"]]
    for names in good:
        reader = SafetensorsReader(files(*names))
        assert set(reader.tensors) == {"a", "é"}
        reader.close()
    for names in bad:
        with pytest.raises(BadModelFile, match=f"the model has {len(names)} .safetensors files"):
            SafetensorsReader(files(*names))


def test_a_missing_file_is_a_storage_error(tmp_path: Path) -> None:
    files = ModelFiles(name="m", digest="", format="safetensors", paths={"model.safetensors": tmp_path / "none"})
    with pytest.raises(StorageError, match=r"^model\.safetensors: cannot be opened"):
        open_weights(files)
