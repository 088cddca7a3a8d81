"""Whisper as CTranslate2 stores it, to the files of transformers, without loss: weights of 16 bits stay what they are.

model.bin: u32 version, name of the specification, u32 revision, u32 number of variables, the variables (name, u8 rank,
u32 dimensions, u8 type, u32 bytes, data), aliases. Texts are u16 length, bytes, a zero. Little-endian. Source: CTranslate2's
model_spec.py (version 6).
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgewise.core.errors import BadModelFile
from edgewise.models.small_files import read_object
from edgewise.models.whisper.languages import NAMES

_VERSION: Final = 6
_TYPES: Final = {0: ("F32", 4), 4: ("F16", 2)}
_MOST: Final = 1 << 16
"""Variables of one file, and bytes of one name."""
_PIECE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class _Variable:
    shape: tuple[int, ...]
    type: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows [first, last) of a variable, under the name that transformers has for them."""

    name: str
    variable: str
    rows: tuple[int, int] | None = None


def convert(path: Path, name: str) -> Iterator[bytes]:
    """The file `name` ("model.safetensors", "config.json", "preprocessor_config.json") of a model.bin.

    Raises:
        BadModelFile: It is no Whisper of this format, or another version of it.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        variables = _read(data, path.name)
        if name == "model.safetensors":
            yield from _safetensors(data, variables)
        else:
            yield _text(_JSON[name](variables))


def convert_generation(path: Path, name: str) -> Iterator[bytes]:
    """generation_config.json of CTranslate2's config.json. Raises BadModelFile."""
    given = read_object(path, name, most=1 << 20)
    try:
        _, end = given["suppress_ids_begin"]
        made = _generation(end, given["suppress_ids"], given["suppress_ids_begin"], given["alignment_heads"])
    except (KeyError, ValueError, TypeError) as error:
        raise BadModelFile(
            f"{path.name} is no configuration of a Whisper in CTranslate2's format: {error!r}."
        ) from error
    yield _text(made)


def _text(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _read(data: mmap.mmap, where: str) -> dict[str, _Variable]:
    cursor = _Cursor(data, where)
    if cursor.number("I") != _VERSION or cursor.text() != "WhisperSpec":
        raise BadModelFile(f"{where} is no Whisper in CTranslate2's format {_VERSION}.")
    cursor.number("I")
    variables = {}
    for _ in range(min(cursor.number("I"), _MOST)):
        name = cursor.text()
        shape = tuple(cursor.number("I") for _ in range(cursor.number("B")))
        kind, size = cursor.number("B"), cursor.number("I")
        variables[name] = _Variable(shape, kind, cursor.at, size)
        cursor.skip(size)
    return variables


class _Cursor:
    def __init__(self, data: mmap.mmap, where: str) -> None:
        self._data = data
        self._where = where
        self.at = 0

    def number(self, form: str) -> int:
        try:
            value: int = struct.unpack_from(f"<{form}", self._data, self.at)[0]
        except struct.error as error:
            raise BadModelFile(f"{self._where} ends in the middle of its table.") from error
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        size = self.number("H")
        self.skip(size)
        return self._data[self.at - size : self.at].rstrip(b"\0").decode("ascii", "replace")

    def skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._data):
            raise BadModelFile(f"{self._where} ends in the middle of a variable.")


def _safetensors(data: mmap.mmap, variables: Mapping[str, _Variable]) -> Iterator[bytes]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    spans: list[tuple[int, int]] = []
    offset = 0
    for part in _parts(variables):
        try:
            variable = variables[part.variable]
            kind, width = _TYPES[variable.type]
        except KeyError as error:
            raise BadModelFile(f"{part.variable} is missing, or has a type that is not read here.") from error
        row = variable.size // variable.shape[0]
        first, last = part.rows or (0, variable.shape[0])
        size = (last - first) * row
        shape = [last - first, *variable.shape[1:]]
        if variable.size != row * variable.shape[0] or size != _product(shape) * width:
            raise BadModelFile(f"{part.variable} has another size than its shape says.")
        header[part.name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        spans.append((variable.start + first * row, size))
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for start, size in spans:
        for at in range(start, start + size, _PIECE):
            yield data[at : min(at + _PIECE, start + size)]


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _parts(variables: Mapping[str, _Variable]) -> Iterator[_Part]:
    width = _shape(variables, "decoder/embeddings/weight")[1]
    for kind in ("encoder", "decoder"):
        home = f"model.{kind}"
        if kind == "encoder":
            for conv in ("conv1", "conv2"):
                yield from _pair(f"{home}.{conv}", f"encoder/{conv}")
        else:
            yield _Part(f"{home}.embed_tokens.weight", "decoder/embeddings/weight")
        yield _Part(f"{home}.embed_positions.weight", f"{kind}/position_encodings/encodings")
        for index in range(_layers(variables, kind)):
            layer, ours = f"{kind}/layer_{index}", f"{home}.layers.{index}"
            yield from _attention(f"{ours}.self_attn", f"{layer}/self_attention", width)
            if kind == "decoder":
                yield from _cross_attention(f"{ours}.encoder_attn", f"{layer}/attention", width)
            yield from _pair(f"{ours}.fc1", f"{layer}/ffn/linear_0")
            yield from _pair(f"{ours}.fc2", f"{layer}/ffn/linear_1")
            yield from _norm(f"{ours}.final_layer_norm", f"{layer}/ffn/layer_norm")
        yield from _norm(f"{home}.layer_norm", f"{kind}/layer_norm")


def _attention(ours: str, theirs: str, width: int) -> Iterator[_Part]:
    """Queries, keys and values lie in one matrix. Keys have no bias in Whisper: theirs is zero, and left out."""
    for number, name in enumerate(("q_proj", "k_proj", "v_proj")):
        rows = (number * width, (number + 1) * width)
        yield from _pair(f"{ours}.{name}", f"{theirs}/linear_0", rows, bias=name != "k_proj")
    yield from _pair(f"{ours}.out_proj", f"{theirs}/linear_1")
    yield from _norm(f"{ours}_layer_norm", f"{theirs}/layer_norm")


def _cross_attention(ours: str, theirs: str, width: int) -> Iterator[_Part]:
    yield from _pair(f"{ours}.q_proj", f"{theirs}/linear_0")
    yield from _pair(f"{ours}.k_proj", f"{theirs}/linear_1", (0, width), bias=False)
    yield from _pair(f"{ours}.v_proj", f"{theirs}/linear_1", (width, 2 * width))
    yield from _pair(f"{ours}.out_proj", f"{theirs}/linear_2")
    yield from _norm(f"{ours}_layer_norm", f"{theirs}/layer_norm")


def _pair(ours: str, theirs: str, rows: tuple[int, int] | None = None, *, bias: bool = True) -> Iterator[_Part]:
    yield _Part(f"{ours}.weight", f"{theirs}/weight", rows)
    if bias:
        yield _Part(f"{ours}.bias", f"{theirs}/bias", rows)


def _norm(ours: str, theirs: str) -> Iterator[_Part]:
    yield _Part(f"{ours}.weight", f"{theirs}/gamma")
    yield _Part(f"{ours}.bias", f"{theirs}/beta")


def _layers(variables: Mapping[str, _Variable], kind: str) -> int:
    return sum(name.startswith(f"{kind}/layer_") and name.endswith("/ffn/linear_0/weight") for name in variables)


def _shape(variables: Mapping[str, _Variable], name: str) -> tuple[int, ...]:
    if name not in variables or len(variables[name].shape) < 2:
        raise BadModelFile(f"{name} is missing.")
    return variables[name].shape


_ENDS: Final = {51_865: 50_257, 51_864: 50_256}
"""By the size of the vocabulary, the id of the end token; 105 control tokens and 1,501 times follow it."""


def _config(variables: Mapping[str, _Variable]) -> dict[str, Any]:
    vocabulary, width = _shape(variables, "decoder/embeddings/weight")
    if vocabulary not in _ENDS:
        raise BadModelFile(f"A Whisper with {vocabulary} tokens is not known here.")
    end = _ENDS[vocabulary]
    heads = width // 64  # of every size that was published
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "vocab_size": vocabulary,
        "num_mel_bins": _shape(variables, "encoder/conv1/weight")[1],
        "d_model": width,
        "encoder_layers": _layers(variables, "encoder"),
        "decoder_layers": _layers(variables, "decoder"),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": _shape(variables, "encoder/layer_0/ffn/linear_0/weight")[0],
        "decoder_ffn_dim": _shape(variables, "decoder/layer_0/ffn/linear_0/weight")[0],
        "max_source_positions": _shape(variables, "encoder/position_encodings/encodings")[0],
        "max_target_positions": _shape(variables, "decoder/position_encodings/encodings")[0],
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": end + 1,
        "torch_dtype": "float16",
    }


def _generation(end: int, suppressed: list[int], at_first: list[int], heads: list[list[int]]) -> dict[str, Any]:
    """`suppressed`: what is never written, and what no text begins with; `heads`: (layer, head) that follow the sound."""
    start, translate = end + 1, end + 2 + len(NAMES)
    made: dict[str, Any] = {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
        "prev_sot_token_id": translate + 3,
        "no_timestamps_token_id": translate + 5,
        "max_length": 448,
        "max_initial_timestamp_index": 50,
        "return_timestamps": False,
        "suppress_tokens": suppressed,
        "begin_suppress_tokens": at_first,
        "alignment_heads": heads,
        "is_multilingual": end == _ENDS[51_865],
    }
    if made["is_multilingual"]:
        made["task_to_id"] = {"transcribe": translate + 1, "translate": translate}
        made["lang_to_id"] = {f"<|{code}|>": start + 1 + number for number, code in enumerate(NAMES)}
    return made


def _preprocessor(variables: Mapping[str, _Variable]) -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": _shape(variables, "encoder/conv1/weight")[1],
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "n_samples": 480_000,
        "nb_max_frames": 3000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


_JSON: Final = {
    "config.json": _config,
    "preprocessor_config.json": _preprocessor,
}
