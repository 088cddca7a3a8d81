"""The audio towers of Qwen2-Audio (Chu et al. 2024) and Qwen2.5-Omni (Xu et al. 2025): Whisper's encoder, two frames to a row.

Qwen2-Audio hears 30 s at once, silence after a recording unheard. Qwen2.5-Omni hears any length in windows of 2 s that know
nothing of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.protocol import SlicedEncoder, Slices
from edgewise.models.multimodal.qwen2_audio import audio_tower
from edgewise.models.multimodal.qwen_audio import AudioTowerConfig, feature_frames, rows_of
from edgewise.models.multimodal.towers.weights import Linear, Part
from edgewise.models.weights.reader import WeightReader
from edgewise.models.whisper.encoder import SoundLayers
from edgewise.models.whisper.features import log_mel, mel_filters

_TIMESCALE: Final = 10_000.0
_SILENCE: Final = 2
"""Frames after a recording whose samples reach into its last frame."""


class AudioTower(SlicedEncoder):
    """A `MediaEncoder` of sound, float32 samples at 16 kHz.

    Args:
        part: Of the tower's tensors.
        project: From the tower's rows to the decoder's.
    """

    def __init__(self, config: AudioTowerConfig, part: Part, project: Linear) -> None:
        self._config = config
        tensors = _tensors(config, part)
        self._layers = SoundLayers(tensors, "", config.layers, config.heads)
        self._places = tensors["embed_positions.weight"]
        self._filters = mel_filters(config.mels).to(self._places.device)
        self._project = project

    def slices(self, item: Media) -> Slices:
        """See `SlicedEncoder`: [`rows_of`, width]; a part is a layer of a window."""
        samples = torch.frombuffer(bytearray(item.content), dtype=torch.float32).to(self._places.device)
        frames = feature_frames(len(samples))
        length = frames + _SILENCE if self._config.window else 2 * self._config.positions
        rows = yield from self._seen(log_mel(samples, self._filters, length), frames)
        return rows

    def _seen(self, spectrogram: torch.Tensor, frames: int) -> Slices:
        """[mels, at least frames] -> [rows_of(frames), width]; frames beyond `frames` are silence."""
        window = self._config.window
        if window is None:
            hidden = yield from self._layers.slices(spectrogram, self._places, (frames - 1) // 2 + 1)
        else:
            parts = spectrogram[:, :frames].split(2 * window, dim=1)  # type: ignore[no-untyped-call]
            heard = []
            for part in parts:
                rows = yield from self._layers.slices(part, self._places)
                heard.append(rows)
            hidden = torch.cat(heard)
        pairs = hidden[: 2 * rows_of(frames)]
        return self._project(self._layers.normed((pairs[0::2] + pairs[1::2]) / 2, "layer_norm"))


def sinusoids(length: int, width: int) -> torch.Tensor:
    """[length, width] float32: sines, then cosines, of speeds from 1 to 1 / 10,000."""
    half = width // 2
    speeds = torch.exp(torch.arange(half).float() * -(torch.tensor(_TIMESCALE).log() / (half - 1)))
    angles = torch.arange(length)[:, None] * speeds
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _tensors(config: AudioTowerConfig, part: Part) -> Mapping[str, torch.Tensor]:
    """By the names of Whisper's encoder."""
    width, inner = config.width, config.inner
    found = {
        "conv1.weight": part.take("conv1.weight", width, config.mels, 3),
        "conv2.weight": part.take("conv2.weight", width, width, 3),
        **{f"{conv}.bias": part.take(f"{conv}.bias", width) for conv in ("conv1", "conv2")},
    }
    for index in range(config.layers):
        shapes: dict[str, tuple[int, ...]] = {
            f"self_attn.{name}_proj.weight": (width, width) for name in ("q", "k", "v", "out")
        }
        shapes |= {f"self_attn.{name}_proj.bias": (width,) for name in ("q", "v", "out")}
        shapes |= {
            "fc1.weight": (inner, width),
            "fc1.bias": (inner,),
            "fc2.weight": (width, inner),
            "fc2.bias": (width,),
        }
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
        for name, shape in shapes.items():
            full = f"layers.{index}.{name}"
            found[full] = part.take(full, *shape)
    norm = "layer_norm" if config.window is None else "ln_post"
    found |= {f"layer_norm.{which}": part.take(f"{norm}.{which}", width) for which in ("weight", "bias")}
    if config.window is None:
        found["embed_positions.weight"] = part.take("embed_positions.weight", config.positions, width)
    else:
        found["embed_positions.weight"] = sinusoids(config.positions, width).to(found["conv1.weight"])
    return found


def load_encoder(
    config: Fields, files: ModelFiles, reader: WeightReader, *, width: int, device: torch.device, dtype: torch.dtype
) -> AudioTower:
    """Qwen2-Audio's (`multimodal.loading.EncoderLoader`)."""
    tower = audio_tower(config)
    part = Part(reader, ("audio_tower.", "model.audio_tower."), device=device, dtype=dtype, name=files.name)
    outer = Part(
        reader,
        ("multi_modal_projector.", "model.multi_modal_projector."),
        device=device,
        dtype=dtype,
        name=files.name,
    )
    return AudioTower(tower, part, outer.linear("linear", tower.width, width))
