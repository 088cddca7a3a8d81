"""Random starter picture models, complete on disk, for tests and drills. The same arguments give the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors

from edgewise.kernels.noise import normal
from edgewise.models.diffusion.starter.config import StarterConfig
from edgewise.models.diffusion.starter.files import TEXT_WEIGHTS, TOKENIZER, save_network
from edgewise.models.diffusion.starter.network import StarterNetwork
from edgewise.models.diffusion.starter.text_encoder import EncoderSizes, TextEncoder, stored_names
from edgewise.models.weights.write import StoredTensor, write_safetensors

TINY = StarterConfig(
    size=16,
    patch=4,
    width=32,
    depth=2,
    heads=2,
    hidden=48,
    smooth=4,
    text_width=32,
    text_tokens=8,
    text_heads=2,
    steps=4,
)
"""A picture of it takes a few milliseconds."""

STARTER_SIZED = StarterConfig()
"""As large as the real one, with a small random encoder of prompts: for measuring time and memory."""

_WORDS = ("a", "red", "green", "blue", "cat", "dog", "house", "of", "picture", "the")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def make_tiny_pictures(directory: Path, *, config: StarterConfig = TINY, seed: int = 0) -> Path:
    """Writes a random model of the sizes `config` into `directory` (made if needed) and returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    network = StarterNetwork(config)
    _randomize(network, seed)
    network.outlet.weight.data.mul_(0.2)  # or guidance would drive every pixel to its limit
    save_network(directory, network)
    tokenizer = _tokenizer()
    tokenizer.save(str(directory / TOKENIZER))
    sizes = EncoderSizes(
        tokenizer.get_vocab_size(),
        2 * config.text_tokens,
        config.text_width,
        1,
        config.text_heads,
        2 * config.text_width,
    )
    encoder = TextEncoder(sizes, tokenizer)
    _randomize(encoder, seed + 1)
    _save_encoder(directory / TEXT_WEIGHTS, encoder)
    return directory


def _randomize(module: torch.nn.Module, seed: int) -> None:
    """Every parameter normal with a deviation that keeps activations near one, and gates open, so that nothing is idle."""
    for stream, parameter in enumerate(module.parameters()):
        drawn = torch.from_numpy(normal(seed, parameter.numel(), stream=stream)).view_as(parameter)
        with torch.no_grad():
            parameter.copy_(drawn * (parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.2))


def _tokenizer() -> tokenizers.Tokenizer:
    vocab = {word: place for place, word in enumerate((*_SPECIAL, *_WORDS))}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    )
    return tokenizer


def _save_encoder(path: Path, encoder: TextEncoder) -> None:
    names = stored_names(len(encoder.blocks))
    tensors = []
    for name, value in encoder.state_dict().items():
        array = value.numpy()[None] if name == "segment" else value.numpy()
        stored = np.ascontiguousarray(array, dtype=np.float32)
        tensors.append(StoredTensor(names[name], tuple(stored.shape), "F32", stored.tobytes()))
    write_safetensors(path, tensors)
