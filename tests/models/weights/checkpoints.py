"""Quantized checkpoints, packed weight by weight from whole numbers: an independent and slow reference for the readers.

Every maker takes a name and a shape [outputs, inputs] and gives the stored tensors and the values that they stand for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files

Tensors = dict[str, torch.Tensor]
Made = tuple[Tensors, torch.Tensor]

# Where AutoAWQ puts outputs 0 to 7 of a word: output 0 in nibble 0, output 1 in nibble 4, ...
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def dice(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def product(whole: NDArray[np.int64], scale: torch.Tensor) -> torch.Tensor:
    """whole * scale, rounded once to the scale's type: both are exact in float64."""
    exact = torch.from_numpy(whole).double() * scale.double()
    return exact.to(scale.dtype)


def words(values: NDArray[np.int64], bits: int, places: tuple[int, ...] | None = None) -> torch.Tensor:
    """[n, m] values of `bits` bits -> [n, m * bits / 32] int32, element j of a word at place j (or `places[j]`)."""
    per_word = 32 // bits
    count = -(-values.shape[1] // per_word)
    packed = np.zeros((values.shape[0], count), np.int64)
    for column in range(values.shape[1]):
        j = column % per_word
        packed[:, column // per_word] |= values[:, column] << (bits * (places[j] if places else j))
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32))


def gptq(
    name: str, shape: tuple[int, int], *, group: int, v2: bool = False, index: bool = True, shuffled: bool = False
) -> Made:
    outputs, inputs = shape
    groups = 1 if group == -1 else -(-inputs // group)
    random = dice()
    q = random.integers(0, 16, (outputs, inputs))
    zero = random.integers(0 if v2 else 1, 16 if v2 else 17, (outputs, groups))
    scale = torch.from_numpy(random.normal(size=(outputs, groups))).half()
    owner = np.arange(inputs) // (inputs if group == -1 else group)
    if shuffled:
        random.shuffle(owner)
    tensors = {
        f"{name}.qweight": words(q, 4).T.contiguous(),
        f"{name}.qzeros": words((zero - (not v2)).T, 4),
        f"{name}.scales": scale.T.contiguous(),
    }
    if index:
        tensors[f"{name}.g_idx"] = torch.from_numpy(owner.astype(np.int32))
    return tensors, product(q - zero[:, owner], scale[:, owner])


def awq(name: str, shape: tuple[int, int], *, group: int) -> Made:
    outputs, inputs = shape
    groups = 1 if group == -1 else -(-inputs // group)
    random = dice()
    q, zero = random.integers(0, 16, (outputs, inputs)), random.integers(0, 16, (outputs, groups))
    scale = torch.from_numpy(random.normal(size=(outputs, groups))).half()
    owner = np.arange(inputs) // (inputs if group == -1 else group)
    tensors = {
        f"{name}.qweight": words(q.T, 4, AWQ_PLACES),
        f"{name}.qzeros": words(zero.T, 4, AWQ_PLACES),
        f"{name}.scales": scale.T.contiguous(),
    }
    return tensors, product(q - zero[:, owner], scale[:, owner])


def compressed(
    name: str,
    shape: tuple[int, int],
    *,
    bits: int,
    packed: bool,
    block: tuple[int, int],
    symmetric: bool = True,
    dtype: torch.dtype = torch.bfloat16,
) -> Made:
    """`block`: outputs and inputs that share a scale."""
    outputs, inputs = shape
    random, low, high = dice(), -(1 << (bits - 1)), 1 << (bits - 1)
    grid = -(-outputs // block[0]), -(-inputs // block[1])
    q, zero = random.integers(low, high, shape), random.integers(low, high, grid)
    scale = torch.from_numpy(random.normal(size=grid)).to(dtype)
    down, across = np.arange(outputs) // block[0], np.arange(inputs) // block[1]
    spread = np.ix_(down, across)
    tensors: Tensors = {f"{name}.weight_scale": scale}
    if packed:
        tensors[f"{name}.weight_packed"] = words(q - low, bits)
        tensors[f"{name}.weight_shape"] = torch.tensor(shape)
    else:
        tensors[f"{name}.weight"] = torch.from_numpy(q).to(torch.int8)
    if not symmetric:
        zeros = words((zero - low).T, bits).T.contiguous() if packed else torch.from_numpy(zero).to(torch.int8)
        tensors[f"{name}.weight_zero_point"] = zeros
    whole = q - zero[spread] if not symmetric else q
    return tensors, product(whole, scale[torch.from_numpy(down)][:, torch.from_numpy(across)])


def fp8(name: str, shape: tuple[int, int], *, block: tuple[int, int], dtype: torch.dtype = torch.bfloat16) -> Made:
    random = dice()
    weight = torch.from_numpy(random.integers(0, 256, shape).astype(np.uint8)).view(torch.float8_e4m3fn)
    grid = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    scale = torch.from_numpy(random.normal(size=grid)).to(dtype)
    spread = scale.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]
    exact = (weight.double() * spread.double()).to(dtype)
    return {f"{name}.weight": weight, f"{name}.weight_scale": scale}, exact


def config_of(kind: str, **options: Any) -> dict[str, Any]:
    """The quantization_config of a kind: "gptq", "awq", or a format of compressed-tensors with its options of weights."""
    if kind in ("gptq", "awq"):
        return {"quant_method": kind, "bits": 4, **options}
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": True, **options}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}


def save(
    folder: Path, tensors: Mapping[str, torch.Tensor], quantization: Mapping[str, Any], **config: Any
) -> ModelFiles:
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return local_files(folder)
