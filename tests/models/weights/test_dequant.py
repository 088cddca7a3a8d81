"""Dequantized values equal those of the `gguf` package bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from edgewise.models.files import ModelFiles
from edgewise.models.weights.dequant import CODECS
from edgewise.models.weights.gguf_reader import GGUFReader

GGUF_TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
GGUF_TYPES += ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]


@pytest.mark.parametrize("name", GGUF_TYPES)
def test_random_bytes_decode_to_the_same_bits(name: str) -> None:
    """Every bit pattern of scales and values may occur, infinities and subnormals included."""
    kind, codec = GGMLQuantizationType[name], CODECS[name]
    assert (codec.block, codec.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(7).integers(0, 256, size=(64, 96 * codec.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(raw.view(np.float32) if name == "F32" else raw, kind)
        ours = codec.decode(raw.reshape(-1))
    numbers = ~np.isnan(expected.reshape(-1))  # the payload of a NaN depends on the processor
    assert np.array_equal(np.isnan(ours), ~numbers)
    assert np.array_equal(ours.view(np.uint32)[numbers], expected.reshape(-1).view(np.uint32)[numbers])
    assert numbers.mean() > 0.9


def test_starter_tensors_decode_to_the_same_bits(starter_files: ModelFiles) -> None:
    check_every_tensor(starter_files)


def test_tensors_of_a_given_file_decode_to_the_same_bits() -> None:
    """A file of K-quants, say: EDGEWISE_TEST_GGUF=/path/to/model.gguf (a few seconds per 100 million weights)."""
    given = os.environ.get("EDGEWISE_TEST_GGUF")
    if not given:
        pytest.skip("EDGEWISE_TEST_GGUF names no file")
    path = Path(given)
    check_every_tensor(ModelFiles(name=path.stem, digest="", format="gguf", paths={path.name: path}))


def check_every_tensor(files: ModelFiles) -> None:
    (path,) = files.paths.values()
    reader = GGUFReader(files)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert list(reader.tensors) == list(theirs)
    for name, info in reader.tensors.items():
        tensor = theirs[name]
        assert info.type == tensor.tensor_type.name
        assert info.nbytes == tensor.n_bytes
        assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
        out = torch.empty(info.shape)
        reader.read_into(name, out)
        expected = dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(out.numpy().view(np.uint32), expected.view(np.uint32)), name
    reader.close()
