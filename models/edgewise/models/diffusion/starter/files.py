"""A starter picture model on disk: config.json, model.safetensors (8 bit), text_encoder.safetensors and tokenizer.json.

Matrices of the network are stored as one signed byte a weight and one float32 scale a row: the layout "int-quantized" of
compressed-tensors, strategy "channel", which `models.weights` reads. Vectors, tables and convolutions stay float32. On loading
everything becomes the type that is computed in: a picture takes long because of its arithmetic, not of its weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
import torch

from edgewise.core.errors import BadModelFile
from edgewise.models.diffusion.starter.config import StarterConfig, read_config
from edgewise.models.diffusion.starter.model import StarterPictures
from edgewise.models.diffusion.starter.network import StarterNetwork
from edgewise.models.diffusion.starter.text_encoder import EncoderSizes, TextEncoder, stored_names
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.reader import WeightReader
from edgewise.models.weights.write import StoredTensor, write_safetensors

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
TEXT_WEIGHTS: Final = "text_encoder.safetensors"
TOKENIZER: Final = "tokenizer.json"
FILES: Final = (CONFIG, WEIGHTS, TEXT_WEIGHTS, TOKENIZER)

_MAX_CONFIG: Final = 1 << 20
ROWS: Final[Mapping[str, Any]] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "all": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        }
    },
}


def is_starter(files: ModelFiles) -> bool:
    """Whether a model's files are those of a starter picture model, judged by their names."""
    return all(name in files.paths for name in FILES)


def load_starter(
    files: ModelFiles, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> StarterPictures:
    """The model in memory, ready to draw.

    Raises:
        BadModelFile: A file is missing, damaged, or does not fit the others; the message names it.
        StorageError: A file cannot be opened.
    """
    for name in FILES:
        if name not in files.paths:
            raise BadModelFile(f"{files.name}: {name} is missing; a starter picture model has {', '.join(FILES)}.")
    config = read_config(read_object(files.paths[CONFIG], CONFIG, most=_MAX_CONFIG), CONFIG)
    network = StarterNetwork(config)
    fill(network, part(files, WEIGHTS, CONFIG), {name: name for name in network.state_dict()})
    encoder = load_encoder(files, config)
    return StarterPictures(network.to(device, dtype), encoder.to(device), made_by=files.digest)


def load_encoder(files: ModelFiles, config: StarterConfig) -> TextEncoder:
    """The text encoder among `files`, float32, on the CPU. Raises `BadModelFile` where it does not fit `config`."""
    stored = part(files, TEXT_WEIGHTS, CONFIG)
    reader = open_weights(stored)
    try:
        shapes = {name: info.shape for name, info in reader.tensors.items()}
    finally:
        reader.close()
    names = stored_names(sum(name.endswith("attention.self.query.weight") for name in shapes))
    try:
        vocab, width = shapes[names["words.weight"]]
        places, hidden = shapes[names["places.weight"]][0], shapes[names["blocks.0.up.weight"]][0]
    except (KeyError, ValueError, IndexError) as error:
        raise BadModelFile(f"{TEXT_WEIGHTS}: no BERT encoder ({error}).") from error
    if width != config.text_width or width % config.text_heads or places < config.text_tokens:
        raise BadModelFile(f"{TEXT_WEIGHTS}: width {width} and {places} places do not fit {CONFIG}.")
    sizes = EncoderSizes(vocab, places, width, len(names) // 16, config.text_heads, hidden)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(files.paths[TOKENIZER]))
    except Exception as error:  # the library raises nothing narrower
        raise BadModelFile(f"{TOKENIZER} cannot be read: {error}") from error
    if tokenizer.get_vocab_size() > vocab:
        raise BadModelFile(f"{TOKENIZER} has {tokenizer.get_vocab_size()} tokens, {TEXT_WEIGHTS} has {vocab}.")
    encoder = TextEncoder(sizes, tokenizer)
    fill(encoder, stored, names)
    return encoder


def fill(module: torch.nn.Module, files: ModelFiles, names: Mapping[str, str]) -> None:
    """Reads every parameter of `module` from `files`, where it is called `names[parameter]`.

    Raises:
        BadModelFile: One is missing or has another shape.
    """
    reader = open_weights(files)
    try:
        for name, target in module.state_dict().items():
            _read(reader, names[name], target, files.name)
    finally:
        reader.close()


def _read(reader: WeightReader, name: str, target: torch.Tensor, where: str) -> None:
    info = reader.tensors.get(name)
    shape = tuple(target.shape)
    first_row = target.ndim == 1 and info is not None and len(info.shape) == 2  # of the table of segments
    if info is None or (info.shape[1:] if first_row else info.shape) != shape:
        raise BadModelFile(
            f"{where}: the tensor {name!r} is {info.shape if info else 'missing'}; {list(shape)} is needed."
        )
    reader.read_into(name, target[None] if first_row else target)


def part(files: ModelFiles, weights: str, *others: str) -> ModelFiles:
    """One weights file of the model, as a model of its own."""
    paths = {name: files.paths[name] for name in (weights, *others)}
    return ModelFiles(name=f"{files.name}, {weights}", digest=files.digest, format="safetensors", paths=paths)


def save_network(folder: Path, network: StarterNetwork, metadata: Mapping[str, str] | None = None) -> None:
    """Writes config.json and the 8-bit model.safetensors into `folder`, which exists."""
    text = json.dumps({**network.config.to_json(), "quantization_config": ROWS}, indent=2)
    (folder / CONFIG).write_text(text + "\n", encoding="ascii")
    matrices = {f"{name}.weight" for name, module in network.named_modules() if isinstance(module, torch.nn.Linear)}
    tensors: list[StoredTensor] = []
    for name, value in network.state_dict().items():
        tensors += in_8_bits(name, value) if name in matrices else [in_float32(name, value)]
    write_safetensors(folder / WEIGHTS, tensors, metadata)


def in_8_bits(name: str, weight: torch.Tensor) -> list[StoredTensor]:
    """A matrix as bytes and scales: every row has the smallest scale that loses none of its range."""
    values = weight.detach().to("cpu", torch.float32).numpy()
    scales = np.maximum(np.abs(values).max(axis=1, keepdims=True) / 127, np.float32(1e-12)).astype(np.float32)
    levels = np.clip(np.rint(values / scales), -127, 127).astype(np.int8)
    return [_stored(name, levels, "I8"), _stored(f"{name}_scale", scales, "F32")]


def in_float32(name: str, value: torch.Tensor) -> StoredTensor:
    """A tensor as it is."""
    return _stored(name, value.detach().to("cpu", torch.float32).numpy(), "F32")


def _stored(name: str, array: np.ndarray[Any, Any], kind: str) -> StoredTensor:
    return StoredTensor(name, tuple(array.shape), kind, np.ascontiguousarray(array).tobytes())
