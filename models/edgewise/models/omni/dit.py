"""The flow matching network of Code2Wav: a diffusion transformer whose frames attend within blocks and to their neighbours."""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import torch
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention, silu

from edgewise.models.multimodal.towers.weights import Part
from edgewise.models.omni.config import DiTConfig
from edgewise.models.omni.speaker_encoder import SpeakerEncoder

_EPS: Final = 1e-6
_TIME_WIDTH: Final = 256
_TIME_SCALE: Final = 1000.0
Turn: TypeAlias = tuple[torch.Tensor, torch.Tensor]


class DiT:
    """Attributes:
    config: Its sizes.
    """

    def __init__(self, config: DiTConfig, part: Part) -> None:
        self.config = config
        width = config.width
        self._codes = part.take("text_embed.codec_embed.weight", config.codes + 1, config.embedding)
        inputs = config.mels + config.speaker.outputs + config.voice + config.embedding
        self._speaker = SpeakerEncoder(config.speaker, part.within("input_embed.spk_encoder."), config.mels)
        self._enter = part.linear("input_embed.proj", inputs, width)
        self._times = (
            part.linear("time_embed.time_mlp.0", _TIME_WIDTH, width),
            part.linear("time_embed.time_mlp.2", width, width),
        )
        self._layers = [_Layer(config, part, index) for index in range(config.layers)]
        self._modulate = part.linear("norm_out.linear", width, 2 * width)
        self._leave = part.linear("proj_out", width, config.mels)

    @property
    def like(self) -> torch.Tensor:
        """A tensor of its dtype and on its device."""
        return self._codes

    def condition(self, voice: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """What a voice adds to every frame: [2, speaker.outputs + voice], with it and without any voice.

        Args:
            voice: [voice], its vector.
            sample: [frames, mels], its sound.
        """
        heard = self._speaker(torch.stack([sample, torch.zeros_like(sample)]))
        return torch.cat([heard, torch.stack([voice, torch.zeros_like(voice)])], dim=1)

    def velocity(
        self, x: torch.Tensor, codes: torch.Tensor, condition: torch.Tensor, time: torch.Tensor, guidance: float
    ) -> torch.Tensor:
        """d x / d time, guided away from what it would be without codes and voice (Ho & Salimans 2022).

        Args:
            x: [frames, mels]; frames may be any run of whole blocks, attention knows distances alone.
            codes: [frames / repeats] int64.
            condition: `condition`'s.
            time: Scalar in [0, 1].
        """
        config = self.config
        heard, voice = condition[:, : config.speaker.outputs], condition[:, config.speaker.outputs :]
        both = torch.stack([codes, torch.zeros_like(codes)])
        embedded = self._codes[both].repeat_interleave(config.repeats, dim=1)
        shape = (2, len(x), -1)
        parts = [x.expand(2, -1, -1), heard[:, None].expand(shape), embedded, voice[:, None].expand(shape)]
        hidden = self._enter(torch.cat(parts, dim=-1))
        moment, turn = self._moment(time), self._turn(len(x), x)
        for layer in self._layers:
            hidden = layer(hidden, moment, turn)
        scale, shift = self._modulate(silu(moment)).chunk(2)
        told, untold = self._leave(_normed(hidden) * (1 + scale) + shift)
        guided: torch.Tensor = told + (told - untold) * guidance
        return guided

    def _moment(self, time: torch.Tensor) -> torch.Tensor:
        half = _TIME_WIDTH // 2
        speeds = torch.exp(torch.arange(half, device=time.device).float() * -(math.log(10_000) / (half - 1)))
        angles = _TIME_SCALE * time * speeds
        first, second = self._times
        moment: torch.Tensor = second(silu(first(torch.cat([angles.sin(), angles.cos()]).to(self._codes.dtype))))
        return moment

    def _turn(self, frames: int, like: torch.Tensor) -> Turn:
        speeds = torch.arange(0, self.config.head_dim, 2, device=like.device).float() / self.config.head_dim
        angles = torch.arange(frames, device=like.device).float()[:, None] / self.config.theta**speeds
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


class _Layer:
    def __init__(self, config: DiTConfig, part: Part, index: int) -> None:
        width, inner, name = config.width, config.heads * config.head_dim, f"transformer_blocks.{index}"
        self._config = config
        self._back, self._ahead = int(index in config.back), int(index in config.ahead)
        self._modulate = part.linear(f"{name}.attn_norm.linear", width, 6 * width)
        self._projections = [part.linear(f"{name}.attn.to_{which}", width, inner) for which in "qkv"]
        self._out = part.linear(f"{name}.attn.to_out.0", inner, width)
        self._rise = part.linear(f"{name}.ff.ff.0", width, config.inner)
        self._fall = part.linear(f"{name}.ff.ff.3", config.inner, width)

    def __call__(self, x: torch.Tensor, moment: torch.Tensor, turn: Turn) -> torch.Tensor:
        shift, scale, gate, inner_shift, inner_scale, inner_gate = self._modulate(silu(moment)).chunk(6)
        x = x + gate * self._attend(_normed(x) * (1 + scale) + shift, turn)
        inner = _normed(x) * (1 + inner_scale) + inner_shift
        return x + inner_gate * self._fall(gelu(self._rise(inner), approximate="tanh"))

    def _attend(self, x: torch.Tensor, turn: Turn) -> torch.Tensor:
        config = self._config
        query, key, value = (
            project(x).view(*x.shape[:2], config.heads, config.head_dim).transpose(1, 2)
            for project in self._projections
        )
        query, key = _turned(query, turn), _turned(key, turn)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=self._mask(x.shape[1], x.device))
        return self._out(mixed.transpose(1, 2).flatten(2))

    def _mask(self, frames: int, device: torch.device) -> torch.Tensor:
        block = torch.arange(frames, device=device) // self._config.block
        distance = block[None, :] - block[:, None]
        return (distance >= -self._back) & (distance <= self._ahead)


def _normed(x: torch.Tensor) -> torch.Tensor:
    return layer_norm(x, x.shape[-1:], eps=_EPS)


def _turned(x: torch.Tensor, turn: Turn) -> torch.Tensor:
    """The first head alone turns, as the model was trained; its pairs are neighbours."""
    first, second = x[:, :1, :, 0::2], x[:, :1, :, 1::2]
    cos, sin = turn
    head = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return torch.cat([head, x[:, 1:]], dim=1)
