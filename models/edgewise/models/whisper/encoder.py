"""Whisper's encoder: 30 s of sound to 1,500 vectors. One recording at a time, so that a result does not depend on its company."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from edgewise.models.multimodal.media import Media
from edgewise.models.whisper.config import WhisperConfig
from edgewise.models.whisper.features import log_mel, mel_filters

EPS = 1e-5


class WhisperEncoder:
    """`models.multimodal.protocol.MediaEncoder` of a Whisper model.

    Args:
        tensors: Those of the encoder, by their names in the file.
    """

    def __init__(self, config: WhisperConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        self.config = config
        self._tensors = tensors
        self._filters = mel_filters(config.mels).to(self._of("conv1.weight").device)

    @torch.inference_mode()
    def encode(self, items: Sequence[Media]) -> list[torch.Tensor]:
        """[audio_tokens, width] for each recording; rows beyond its frames are zero."""
        device = self._of("conv1.weight").device
        rows = []
        for item in items:
            samples = torch.frombuffer(bytearray(item.content), dtype=torch.float32).to(device)
            rows.append(functional.pad(self.hidden(samples), (0, 0, 0, self.config.audio_tokens - self.config.frames)))
        return rows

    @torch.inference_mode()
    def hidden(self, samples: torch.Tensor) -> torch.Tensor:
        """[n] float32 at 16 kHz -> [frames, width] in the weights' dtype."""
        return self.of_spectrogram(log_mel(samples, self._filters, 2 * self.config.frames))

    @torch.inference_mode()
    def of_spectrogram(self, spectrogram: torch.Tensor) -> torch.Tensor:
        """[mels, 2 * frames] -> [frames, width]."""
        x = spectrogram.to(self._of("conv1.weight").dtype)[None]
        x = functional.gelu(functional.conv1d(x, self._of("conv1.weight"), self._of("conv1.bias"), padding=1))
        x = functional.gelu(functional.conv1d(x, self._of("conv2.weight"), self._of("conv2.bias"), stride=2, padding=1))
        hidden = x[0].T.float() + self._of("embed_positions.weight").float()
        for index in range(self.config.encoder_layers):
            hidden = hidden + self._attention(self._normed(hidden, f"layers.{index}.self_attn_layer_norm"), index)
            inner = self._linear(self._normed(hidden, f"layers.{index}.final_layer_norm"), f"layers.{index}.fc1")
            hidden = hidden + self._linear(functional.gelu(inner), f"layers.{index}.fc2")
        return self._normed(hidden, "layer_norm")

    def _attention(self, x: torch.Tensor, index: int) -> torch.Tensor:
        name, heads = f"layers.{index}.self_attn", self.config.encoder_heads
        q, k, v = (
            self._linear(x, f"{name}.{part}").view(x.shape[0], heads, -1).transpose(0, 1)[None]
            for part in ("q_proj", "k_proj", "v_proj")
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)[0]
        return self._linear(mixed.transpose(0, 1).flatten(1), f"{name}.out_proj")

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """In float32, result in the weights' dtype."""
        weight, bias = self._of(f"{name}.weight"), self._of(f"{name}.bias")
        return functional.layer_norm(x, weight.shape, weight.float(), bias.float(), EPS).to(weight.dtype)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self._of(f"{name}.weight"), self._tensors.get(f"model.encoder.{name}.bias"))

    def _of(self, name: str) -> torch.Tensor:
        return self._tensors[f"model.encoder.{name}"]
