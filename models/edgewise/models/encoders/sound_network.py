"""Whisper's encoder as the ladder climbs with it: spectrograms in, states out."""

from __future__ import annotations

import wave
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from edgewise.core.errors import BadModelFile
from edgewise.models.encoders.exported import export
from edgewise.models.encoders.tensor_network import Samples, TensorNetwork
from edgewise.models.encoders.weights import Array
from edgewise.models.files import ModelFiles
from edgewise.models.weights.open import open_weights
from edgewise.models.whisper.config import RATE, SECONDS, WhisperConfig, read_whisper
from edgewise.models.whisper.encoder import EPS
from edgewise.models.whisper.features import log_mel, mel_filters

PREFIX: Final = "model.encoder."
MANY: Final = 2
"""Windows of the larger timing: hardly more wait at once, and each takes half a second."""


class WhisperModule(nn.Module):
    """`models.whisper.encoder.WhisperEncoder` for several windows at once; its parameters have the file's names."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.mels, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.frames, config.width)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(config.width, EPS)

    def forward(self, spectrograms: torch.Tensor) -> torch.Tensor:
        """[n, mels, 2 * frames] to [n, frames, width]."""
        heard = functional.gelu(self.conv2(functional.gelu(self.conv1(spectrograms))))
        states: torch.Tensor = heard.transpose(1, 2) + self.embed_positions.weight
        for layer in self.layers:
            states = layer(states)
        normed: torch.Tensor = self.layer_norm(states)
        return normed


class _Layer(nn.Module):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.width, EPS)
        self.fc1 = nn.Linear(config.width, config.encoder_inner)
        self.fc2 = nn.Linear(config.encoder_inner, config.width)
        self.final_layer_norm = nn.LayerNorm(config.width, EPS)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states + self.self_attn(self.self_attn_layer_norm(states))
        inner: torch.Tensor = self.fc2(functional.gelu(self.fc1(self.final_layer_norm(states))))
        return states + inner


class _Attention(nn.Module):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self._heads = config.encoder_heads
        self.q_proj = nn.Linear(config.width, config.width)
        self.k_proj = nn.Linear(config.width, config.width, bias=False)
        self.v_proj = nn.Linear(config.width, config.width)
        self.out_proj = nn.Linear(config.width, config.width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            one(states).unflatten(2, (self._heads, -1)).transpose(1, 2)
            for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.out_proj(mixed)
        return out


def whisper_module(config: WhisperConfig, tensors: Mapping[str, torch.Tensor]) -> WhisperModule:
    """With the encoder's tensors, by their names in the file, in float32 and evaluation mode."""
    with torch.device("meta"):
        module = WhisperModule(config)
    module.load_state_dict({name.removeprefix(PREFIX): it.float() for name, it in tensors.items()}, assign=True)
    return module.eval().requires_grad_(False)


def read_module(files: ModelFiles) -> tuple[WhisperConfig, WhisperModule]:
    """The encoder of a Whisper model.

    Raises:
        BadModelFile, UnsupportedModel: It cannot be read.
    """
    config = read_whisper(files)
    tensors = {}
    with closing(open_weights(files)) as reader:
        for name, info in reader.tensors.items():
            if name.startswith(PREFIX):
                tensors[name] = torch.empty(info.shape)
                reader.read_into(name, tensors[name])
    try:
        return config, whisper_module(config, tensors)
    except RuntimeError as error:
        raise BadModelFile(f"{files.name}: the encoder's tensors do not fit its configuration: {error}.") from error


def whisper_network(files: ModelFiles, samples: Path, gate: float, threads: int) -> TensorNetwork:
    """A Whisper's encoder for a climb; `samples` is a folder of speech (WAV, 16 kHz, one channel, 16 bits).

    Raises:
        BadModelFile, UnsupportedModel: It cannot be read.
    """
    config, module = read_module(files)
    found = Samples(
        calibration=spectrograms(samples / "calibration", config), judged=spectrograms(samples / "gate", config)
    )
    graph = export(module, found.judged[0])
    return TensorNetwork(graph, found, gate=gate, threads=threads, many=MANY)


def spectrograms(folder: Path, config: WhisperConfig) -> list[Array]:
    """Of each recording, [1, mels, 2 * frames].

    Raises:
        BadModelFile: There is none, or one has another form.
    """
    filters = mel_filters(config.mels)
    found = []
    for path in sorted(folder.glob("*.wav")):
        with wave.open(str(path)) as sound:
            if (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) != (RATE, 1, 2):
                raise BadModelFile(f"{path} is not of {RATE} Hz, one channel and 16 bits.")
            numbers = np.frombuffer(sound.readframes(int(RATE * SECONDS)), "<i2")
        samples = torch.from_numpy(numbers.astype(np.float32) / 32768)
        found.append(log_mel(samples, filters, 2 * config.frames)[None].numpy())
    if not found:
        raise BadModelFile(f"{folder} has no recordings to calibrate with: install Edgewise again.")
    return found
