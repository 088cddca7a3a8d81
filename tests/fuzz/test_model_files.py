"""Seeded mutations of valid model files: whatever a file holds, only a model-file error comes out, and memory stays bounded.

EDGEWISE_FUZZ_ROUNDS multiplies the number of mutations (default 1) for long runs by hand.
"""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.files import ModelFiles, ModelFormat
from edgewise.models.tiny_vocab import build_vocab
from edgewise.models.tokenizer import load_tokenizer
from edgewise.models.weights.gguf import GGUFArray, header_of
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.write import GGUFValue, StoredTensor, write_gguf, write_safetensors

ROUNDS = int(os.environ.get("EDGEWISE_FUZZ_ROUNDS", "1"))
MAX_PEAK_BYTES = 8 << 20
NUMBERS = (0, 1, 2, 7, 31, 32, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1)
PIECES = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"null",
    b"-1",
    b"1e9",
    b"9" * 30,
    b"\\u0000",
    b"\xff",
    b"[[[[" * 40,
)

Mutate = Callable[[random.Random, bytearray], None]


def overwrite_number(dice: random.Random, raw: bytearray) -> None:
    layout = dice.choice(("<I", "<Q"))
    at = dice.randrange(max(1, len(raw) - 8))
    raw[at : at + struct.calcsize(layout)] = struct.pack(
        layout, dice.choice(NUMBERS) % 2 ** (8 * struct.calcsize(layout))
    )


def flip_bits(dice: random.Random, raw: bytearray) -> None:
    for _ in range(dice.randint(1, 4)):
        raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)


def cut_out(dice: random.Random, raw: bytearray) -> None:
    at = dice.randrange(len(raw))
    del raw[at : at + dice.choice((1, 4, 8, 100))]


def truncate(dice: random.Random, raw: bytearray) -> None:
    del raw[dice.randrange(len(raw)) :]


def repeat_part(dice: random.Random, raw: bytearray) -> None:
    start, to = dice.randrange(len(raw)), dice.randrange(len(raw))
    raw[to:to] = raw[start : start + dice.choice((1, 8, 40, 200))]


def insert_piece(dice: random.Random, raw: bytearray) -> None:
    at = dice.randrange(len(raw))
    raw[at:at] = dice.choice(PIECES)


def bump_byte(dice: random.Random, raw: bytearray) -> None:
    at = dice.randrange(len(raw))
    raw[at] = (raw[at] + dice.choice((1, -1))) % 256


MUTATIONS: tuple[Mutate, ...] = (
    overwrite_number,
    overwrite_number,
    flip_bits,
    cut_out,
    truncate,
    repeat_part,
    insert_piece,
    bump_byte,
)


def mutants(base: bytes, seed: int, count: int) -> list[bytes]:
    """`count` mutated copies. Half of them are hit in the first 200 bytes only, where the structure is densest."""
    made: list[bytes] = []
    for number in range(count):
        dice = random.Random(seed * 1_000_003 + number)
        head = 200 if number % 2 else len(base)
        raw, tail = bytearray(base[:head]), base[head:]
        for _ in range(dice.choice((1, 1, 2, 3))):
            if raw:
                dice.choice(MUTATIONS)(dice, raw)
        made.append(bytes(raw) + tail)
    return made


def hunt(path: Path, variants: list[bytes], check: Callable[[], None], blamed: tuple[str, ...] = ()) -> int:
    """Run `check` on every variant written to `path`; returns how many were refused. Any other error fails the test.

    Messages blame the file itself, or one of `blamed`.
    """
    refused: list[str] = []
    tracemalloc.start()
    try:
        for variant in variants:
            path.write_bytes(variant)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                check()
            except (BadModelFile, UnsupportedModel) as error:
                refused.append(error.message)
            assert tracemalloc.get_traced_memory()[1] - before < MAX_PEAK_BYTES
    finally:
        tracemalloc.stop()
    assert all(message.startswith((path.name, *blamed)) for message in refused)
    return len(refused)


def read_everything(files: ModelFiles) -> None:
    with closing(open_weights(files)) as reader:
        for name, info in reader.tensors.items():
            reader.read_into(name, torch.empty(info.shape, dtype=torch.float64))


def files_of(path: Path) -> ModelFiles:
    kind: ModelFormat = "gguf" if path.suffix == ".gguf" else "safetensors"
    return ModelFiles(name="m", digest="", format=kind, paths={path.name: path})


TENSORS = [
    StoredTensor("a.weight", (3, 32), "Q4_1", bytes(range(60))),
    StoredTensor("b.weight", (2, 5), "F32", bytes(40)),
    StoredTensor("c.weight", (4,), "BF16", bytes(8)),
    StoredTensor("d.weight", (1, 256), "Q5_K", bytes(176)),
    StoredTensor("e.weight", (1, 256), "Q6_K", bytes(range(210))),
]
GGUF_ONLY = ("Q4_1", "Q5_K", "Q6_K")


def test_gguf_headers(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    metadata: dict[str, GGUFValue] = {
        "general.architecture": "llama",
        "x.flag": True,
        "x.count": 7,
        "x.base": 0.5,
        "x.list": [1, 2, 3],
    }
    write_gguf(path, {**metadata, "general.alignment": 32, "x.words": ["one", "", "drei"]}, TENSORS)

    def check() -> None:
        header = header_of(files_of(path))
        for key, value in header.metadata.items():
            if isinstance(value, GGUFArray):
                (header.get_strings if value.kind == 8 else header.get_numbers)(key)
        read_everything(files_of(path))

    check()
    variants = mutants(path.read_bytes(), 1, 2500 * ROUNDS)
    refused = hunt(path, variants, check)
    assert len(variants) // 2 < refused < len(variants)


def test_safetensors_headers(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = [tensor for tensor in TENSORS if tensor.type not in GGUF_ONLY]
    write_safetensors(path, [*tensors, StoredTensor("é", (2, 2), "I8", bytes(4))], {"format": "pt", "x": "{}"})
    variants = mutants(path.read_bytes(), 2, 2500 * ROUNDS)
    refused = hunt(path, variants, lambda: read_everything(files_of(path)))
    assert len(variants) // 2 < refused < len(variants)


def test_quantized_folders(tmp_path: Path) -> None:
    """Parts of a matrix that do not belong together, whatever their header says of them."""
    zeros = [
        StoredTensor("a.qweight", (4, 8), "I32", bytes(128)),
        StoredTensor("a.qzeros", (1, 1), "I32", bytes(4)),
        StoredTensor("a.scales", (1, 8), "F16", bytes(16)),
        StoredTensor("a.g_idx", (32,), "I32", bytes(128)),
    ]
    rows = [
        StoredTensor("a.weight_packed", (3, 4), "I32", bytes(48)),
        StoredTensor("a.weight_scale", (3, 1), "F32", bytes(12)),
        StoredTensor("a.weight_shape", (2,), "I64", struct.pack("<QQ", 3, 32)),
        StoredTensor("a.weight_zero_point", (1, 1), "I32", bytes(4)),
    ]
    weights = {"num_bits": 4, "strategy": "channel", "symmetric": False}
    packed = {"format": "pack-quantized", "config_groups": {"g": {"weights": weights}}}
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    files = ModelFiles(name="m", digest="", format="safetensors", paths={path.name: path, config.name: config})
    for seed, (tensors, options) in enumerate(
        ((zeros, {"quant_method": "gptq"}), (rows, {"quant_method": "compressed-tensors", **packed}))
    ):
        config.write_text(json.dumps({"quantization_config": options}))
        write_safetensors(path, tensors)
        read_everything(files)
        variants = mutants(path.read_bytes(), 5 + seed, 1200 * ROUNDS)
        refused = hunt(path, variants, lambda: read_everything(files))
        assert len(variants) // 2 < refused < len(variants)
        write_safetensors(path, tensors)
        options_variants = mutants(config.read_bytes(), 7 + seed, 600 * ROUNDS)
        refused = hunt(config, options_variants, lambda: read_everything(files), blamed=(path.name,))
        assert refused > 0


def test_shard_indexes(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x-1.safetensors", TENSORS[1:2])
    write_safetensors(tmp_path / "x-2.safetensors", TENSORS[2:3])
    path = tmp_path / "model.safetensors.index.json"
    weight_map = {"b.weight": "x-1.safetensors", "c.weight": "x-2.safetensors"}
    path.write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": weight_map}))
    names = ("x-1.safetensors", "x-2.safetensors", path.name)
    files = ModelFiles(name="m", digest="", format="safetensors", paths={name: tmp_path / name for name in names})
    read_everything(files)
    variants = mutants(path.read_bytes(), 3, 1000 * ROUNDS)
    refused = 0
    tracemalloc.start()
    for variant in variants:
        path.write_bytes(variant)
        try:
            read_everything(files)
        except (BadModelFile, UnsupportedModel):
            refused += 1
    assert tracemalloc.get_traced_memory()[1] < MAX_PEAK_BYTES
    tracemalloc.stop()
    assert 0 < refused < len(variants)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_tokenizers_of_headers(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.gguf"
    vocab = build_vocab(290)
    merges = [" ".join(pair) for pair in vocab.merges]
    size = len(vocab.tokens)
    write_gguf(
        path,
        {
            "tokenizer.ggml.model": kind,
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.scores": [-float(id) for id in range(size)],
            "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (size - 4) + [4],
            "tokenizer.ggml.tokens": vocab.tokens,
        },
        [],
    )

    def check() -> None:
        tokenizer = load_tokenizer(files_of(path))
        ids = tokenizer.encode("the pump <|im_end|> é 12", add_special=True)
        tokenizer.decode([*ids, size - 1, size, -1])

    check()
    variants = mutants(path.read_bytes(), 4, 600 * ROUNDS)
    refused = hunt(path, variants, check)
    assert 0 < refused < len(variants)
