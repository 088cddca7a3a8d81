"""Whisper's encoder: 30 s of sound to 1,500 vectors. One recording at a time, so that a result does not depend on its company."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.protocol import SlicedEncoder, Slices, finished
from edgewise.models.whisper.config import WhisperConfig
from edgewise.models.whisper.features import log_mel, mel_filters

EPS = 1e-5


class WhisperEncoder(SlicedEncoder):
    """Of a Whisper model: [audio_tokens, width] for each recording; rows beyond its frames are zero.

    Args:
        tensors: Those of the encoder, by their names in the file.
    """

    def __init__(self, config: WhisperConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        self.config = config
        self._layers = SoundLayers(tensors, "model.encoder.", config.encoder_layers, config.encoder_heads)
        self._places = tensors["model.encoder.embed_positions.weight"]
        self._filters = mel_filters(config.mels).to(self._places.device)

    @property
    def device(self) -> torch.device:
        return self._places.device

    def spectrogram(self, item: Media) -> torch.Tensor:
        """[mels, 2 * frames] float32 of a recording, silence after it."""
        samples = torch.frombuffer(bytearray(item.content), dtype=torch.float32).to(self.device)
        return log_mel(samples, self._filters, 2 * self.config.frames)

    def slices(self, item: Media) -> Slices:
        """See `SlicedEncoder`; a part is a layer."""
        rows = yield from self._seen(self.spectrogram(item))
        return functional.pad(rows, (0, 0, 0, self.config.audio_tokens - self.config.frames))

    @torch.inference_mode()
    def of_spectrogram(self, spectrogram: torch.Tensor) -> torch.Tensor:
        """[mels, 2 * frames] -> [frames, width] in the weights' dtype."""
        return finished(self._seen(spectrogram))

    def _seen(self, spectrogram: torch.Tensor) -> Slices:
        hidden = yield from self._layers.slices(spectrogram, self._places)
        return self._layers.normed(hidden, "layer_norm")


class SoundLayers:
    """Two convolutions over time and the layers behind them, as in Whisper and in models that were made from it.

    Args:
        tensors: By name; others may be among them.
        prefix: Of these in `tensors`.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], prefix: str, layers: int, heads: int) -> None:
        self._tensors, self._prefix = tensors, prefix
        self._count, self._heads = layers, heads

    def slices(self, spectrogram: torch.Tensor, places: torch.Tensor, kept: int | None = None) -> Slices:
        """What the layers make of a spectrogram, before any norm; a part is a layer.

        Args:
            spectrogram: [mels, 2 * frames].
            places: [at least frames, width], added by position.
            kept: Frames that the layers see, the first ones; None for all.

        Returns:
            [frames or kept, width] float32.
        """
        x = spectrogram.to(self._of("conv1.weight").dtype)[None]
        x = functional.gelu(functional.conv1d(x, self._of("conv1.weight"), self._of("conv1.bias"), padding=1))
        x = functional.gelu(functional.conv1d(x, self._of("conv2.weight"), self._of("conv2.bias"), stride=2, padding=1))
        hidden = x[0].T.float()[:kept]
        hidden = hidden + places[: hidden.shape[0]].float()
        for index in range(self._count):
            yield
            hidden = hidden + self._attention(self.normed(hidden, f"layers.{index}.self_attn_layer_norm"), index)
            inner = self._linear(self.normed(hidden, f"layers.{index}.final_layer_norm"), f"layers.{index}.fc1")
            hidden = hidden + self._linear(functional.gelu(inner), f"layers.{index}.fc2")
        return hidden

    def _attention(self, x: torch.Tensor, index: int) -> torch.Tensor:
        name = f"layers.{index}.self_attn"
        q, k, v = (
            self._linear(x, f"{name}.{part}").view(x.shape[0], self._heads, -1).transpose(0, 1)[None]
            for part in ("q_proj", "k_proj", "v_proj")
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)[0]
        return self._linear(mixed.transpose(0, 1).flatten(1), f"{name}.out_proj")

    def normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """In float32, result in the weights' dtype."""
        weight, bias = self._of(f"{name}.weight"), self._of(f"{name}.bias")
        return functional.layer_norm(x, weight.shape, weight.float(), bias.float(), EPS).to(weight.dtype)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self._of(f"{name}.weight"), self._tensors.get(f"{self._prefix}{name}.bias"))

    def _of(self, name: str) -> torch.Tensor:
        return self._tensors[f"{self._prefix}{name}"]
