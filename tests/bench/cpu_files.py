"""The files that engines are compared on: the starter rounded to one kind of block, and a model of a billion random weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from edgewise.models.weights.write import GGUFValue, StoredTensor, write_gguf
from tests.e2e.service import cache_dir, starter_model

Kind = Literal["Q4_0", "Q4_1", "Q8_0"]
_FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # llama.cpp's LLAMA_FTYPE_MOSTLY_*
_LAYERS, _HIDDEN, _HEADS, _KV_HEADS, _FFN = (
    16,
    2048,
    32,
    8,
    8192,
)  # as Llama 3.2 1B; vocabulary and tokenizer are the starter's


def starter_file(kind: Kind) -> Path:
    """The starter model with all matrices of its layers in blocks of this kind; the embedding stays in Q8_0.

    The file itself has Q4_1; others are rounded from that, by llama.cpp's own rule (`gguf.quants`).
    """
    (shipped,) = starter_model().paths.values()
    return shipped if kind == "Q4_1" else _made(f"starter-{kind}.gguf", lambda out: _round(shipped, kind, out))


def billion_file(kind: Kind) -> Path:
    """A llama of 1.07 billion random weights, as fast to compute as a trained one; written once."""
    (shipped,) = starter_model().paths.values()
    return _made(f"random-1b-{kind}.gguf", lambda out: _write_billion(shipped, kind, out))


def _made(name: str, write: Callable[[Path], None]) -> Path:
    folder = cache_dir() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if not path.exists():
        part = folder / f"{name}.{os.getpid()}"
        write(part)
        part.replace(path)
    return path


def _round(shipped: Path, kind: Kind, out: Path) -> None:
    reader = gguf.GGUFReader(shipped)
    tensors = []
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if tensor.tensor_type.name == "Q4_1":
            values = dequantize(np.asarray(tensor.data), tensor.tensor_type)
            data = quantize(values, gguf.GGMLQuantizationType[kind]).tobytes()
            tensors.append(StoredTensor(tensor.name, shape, kind, data))
        else:
            tensors.append(StoredTensor(tensor.name, shape, tensor.tensor_type.name, np.asarray(tensor.data).tobytes()))
    write_gguf(out, _metadata(reader) | {"general.file_type": _FILE_TYPES[kind]}, tensors)


def _metadata(reader: gguf.GGUFReader) -> dict[str, GGUFValue]:
    """What our writer can write of it, which is all that a model needs."""
    found: dict[str, GGUFValue] = {}
    for name, field in reader.fields.items():
        value: Any = field.contents()
        if not name.startswith("GGUF.") and not (isinstance(value, list) and not value):
            found[name] = value
    return found


def _write_billion(shipped: Path, kind: Kind, out: Path) -> None:
    metadata = _metadata(gguf.GGUFReader(shipped)) | {
        "general.name": "random 1b",
        "general.file_type": _FILE_TYPES[kind],
        "llama.block_count": _LAYERS,
        "llama.embedding_length": _HIDDEN,
        "llama.feed_forward_length": _FFN,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _KV_HEADS,
        "llama.rope.dimension_count": _HIDDEN // _HEADS,
    }
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    write_gguf(out, metadata, list(_billion_tensors(kind, len(tokens))))


def _billion_tensors(kind: Kind, vocab: int) -> Iterable[StoredTensor]:
    rng = np.random.default_rng(1)
    kv = _HIDDEN // _HEADS * _KV_HEADS
    yield _random("token_embd.weight", (vocab, _HIDDEN), "Q8_0", rng)
    yield _ones("output_norm.weight")
    for layer in range(_LAYERS):
        shapes = {
            "attn_q": (_HIDDEN, _HIDDEN),
            "attn_k": (kv, _HIDDEN),
            "attn_v": (kv, _HIDDEN),
            "attn_output": (_HIDDEN, _HIDDEN),
            "ffn_gate": (_FFN, _HIDDEN),
            "ffn_up": (_FFN, _HIDDEN),
            "ffn_down": (_HIDDEN, _FFN),
        }
        yield _ones(f"blk.{layer}.attn_norm.weight")
        yield _ones(f"blk.{layer}.ffn_norm.weight")
        for name, shape in shapes.items():
            yield _random(f"blk.{layer}.{name}.weight", shape, kind, rng)


def _ones(name: str) -> StoredTensor:
    return StoredTensor(name, (_HIDDEN,), "F32", np.ones(_HIDDEN, dtype=np.float32).tobytes())


def _random(name: str, shape: tuple[int, int], kind: Kind, rng: np.random.Generator) -> StoredTensor:
    """Codes drawn evenly, with the one scale by which the matrix keeps the size of its input."""
    rows, cols = shape
    spread = {"Q4_0": 4.6, "Q8_0": 73.9}[kind]  # standard deviation of the codes
    scale = np.float16(1.0 / (spread * np.sqrt(cols)))
    codes: NDArray[np.uint8] = rng.integers(0, 256, (rows, cols // 32, 16 if kind == "Q4_0" else 32), dtype=np.uint8)
    scales = np.full((rows, cols // 32, 1), scale, dtype=np.float16).view(np.uint8)
    return StoredTensor(name, shape, kind, np.concatenate([scales, codes], axis=2).tobytes())
