"""Whisper's encoder as the ladder climbs with it: spectrograms in, states out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from edgewise.core.errors import BadModelFile
from edgewise.models.encoders.exported import export
from edgewise.models.encoders.layers import TransformerLayer
from edgewise.models.encoders.network import Session
from edgewise.models.encoders.record import Judge
from edgewise.models.encoders.sound_texts import Texts, right_words
from edgewise.models.encoders.tensor_network import Samples, TensorNetwork, TensorSession
from edgewise.models.encoders.weights import Array
from edgewise.models.files import ModelFiles
from edgewise.models.weights.open import open_weights
from edgewise.models.whisper.config import HOP, WhisperConfig, read_whisper
from edgewise.models.whisper.encoder import EPS
from edgewise.models.whisper.features import log_mel, mel_filters

PREFIX: Final = "model.encoder."
SOUNDS: Final = (".flac", ".wav", ".mp3", ".ogg")
"""Names of recordings end so."""
_SOFTLY: Final = 0.3
_PARTS: Final = 8
"""A window takes long: fewer parts are tried."""
MANY: Final = 2
"""Windows of the larger timing: hardly more wait at once, and each takes half a second."""


class WhisperModule(nn.Module):
    """`models.whisper.encoder.WhisperEncoder` for several windows at once; its parameters have the file's names."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.mels, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.frames, config.width)
        sizes = (config.width, config.encoder_heads, config.encoder_inner, EPS)
        self.layers = nn.ModuleList(TransformerLayer(*sizes, key_bias=False) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(config.width, EPS)

    def forward(self, spectrograms: torch.Tensor) -> torch.Tensor:
        """[n, mels, 2 * frames] to [n, frames, width]."""
        heard = functional.gelu(self.conv2(functional.gelu(self.conv1(spectrograms))))
        states: torch.Tensor = heard.transpose(1, 2) + self.embed_positions.weight
        for layer in self.layers:
            states = layer(states)
        normed: torch.Tensor = self.layer_norm(states)
        return normed


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


def whisper_network(files: ModelFiles, samples: Path | None, gate: float, threads: int) -> TensorNetwork:
    """A Whisper's encoder for a climb; `samples` is a folder of recordings of speech: every second one, by name, is to judge.

    A text beside a recording (`talk.txt` beside `talk.wav`) is what is said in it: words are counted then, for the record.

    Raises:
        BadModelFile, UnsupportedModel: It cannot be read.
    """
    config, module = read_module(files)
    recordings = [] if samples is None else sorted(path for path in samples.iterdir() if path.suffix in SOUNDS)
    if samples is None or len(recordings) < 2:  # one to find ranges, one to judge
        raise BadModelFile(
            f"{files.name} is calibrated and judged with recordings: name a folder that has two or more ({', '.join(SOUNDS)})."
        )
    found = Samples(calibration=spectrograms(recordings[::2], config), judged=spectrograms(recordings[1::2], config))
    graph = export(module, found.judged[0])

    @cache
    def texts() -> Texts:
        # Recordings as they are, without those that are repeated.
        return Texts(files, found.judged[::2], TensorSession(graph, threads))

    def objects(session: Session) -> str:
        return texts().objection(session)

    network = TensorNetwork(graph, found, gate=gate, threads=threads, many=MANY, parts=_PARTS, objects=objects)
    said = [_said(path) for path in recordings[1::2]]
    counts = (
        [right_words(one, text) for one, text in zip(said, texts().wanted, strict=True) if one] if any(said) else []
    )
    network.judge = Judge(
        kind="recordings",
        name=samples.absolute().name,
        inputs=len(said),
        words=sum(words for words, _ in counts),
        right=sum(right for _, right in counts),
    )
    return network


def _said(recording: Path) -> str:
    """What is said in it, "" where nobody has written it down."""
    text = recording.with_suffix(".txt")
    return text.read_text(encoding="utf-8", errors="replace") if text.is_file() else ""


def spectrograms(recordings: Sequence[Path], config: WhisperConfig) -> list[Array]:
    """Of each recording as it is, silence after it, and repeated softly until the window is full: [1, mels, 2 * frames].

    Raises:
        InvalidRequest: One cannot be read.
    """
    # Here: it brings FFmpeg along.
    from edgewise.models.media.audio import decode

    filters, length = mel_filters(config.mels), 2 * config.frames * HOP
    found = []
    for path in recordings:
        _, content = decode(path.read_bytes(), path.name)
        sound = np.frombuffer(content, np.float32)
        for samples in (sound[:length], np.resize(sound, length) * _SOFTLY):
            spectrogram = log_mel(torch.from_numpy(samples.copy()), filters, 2 * config.frames)
            found.append(spectrogram[None].numpy())
    return found
