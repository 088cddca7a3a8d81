"""BigVGAN (Lee et al. 2022): mel frames to a waveform, by convolutions that reach a bounded number of frames."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch.nn import functional

from edgewise.models.multimodal.towers.weights import Part
from edgewise.models.omni.config import VocoderConfig

_RATIO: Final = 2
_TAPS: Final = 12
_DECIBELS: Final = 115.0
_OFFSET: Final = 20.0
_EDGE: Final = 3
"""Samples that the first and last convolution reach to each side."""
_FILTER_REACH: Final = 6
"""Samples that one smoothed activation reaches to each side, at its input's rate."""


class Vocoder:
    """Attributes:
    config: Its sizes.
    """

    def __init__(self, config: VocoderConfig, part: Part) -> None:
        self.config = config
        self._first = (
            part.take("conv_pre.weight", config.channels, config.mels, 7),
            part.take("conv_pre.bias", config.channels),
        )
        self._ups: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._blocks: list[list[_Block]] = []
        channels = config.channels
        for level, kernel in enumerate(config.rate_kernels):
            below = channels // 2
            name = f"ups.{level}.0"
            self._ups.append((part.take(f"{name}.weight", channels, below, kernel), part.take(f"{name}.bias", below)))
            at = level * len(config.kernels)
            sizes = zip(config.kernels, config.dilations, strict=True)
            self._blocks.append(
                [_Block(part, f"resblocks.{at + index}", below, *size) for index, size in enumerate(sizes)]
            )
            channels = below
        self._smooth = _Activation(part, "activation_post", channels)
        self._last = part.take("conv_post.weight", 1, channels, 7)

    def __call__(self, mel: torch.Tensor) -> torch.Tensor:
        """[frames, mels] (logarithms of amplitudes) -> [frames * hop] in [-1, 1]."""
        weight, bias = self._first
        x = functional.conv1d(_decibels(mel.T[None]), weight, bias, padding=3)
        for level, (up, blocks) in enumerate(zip(self._ups, self._blocks, strict=True)):
            rate, kernel = self.config.rates[level], self.config.rate_kernels[level]
            x = functional.conv_transpose1d(x, *up, stride=rate, padding=(kernel - rate) // 2)
            x = torch.stack([block(x) for block in blocks]).sum(0) / len(blocks)
        return functional.conv1d(self._smooth(x), self._last, padding=3).clamp(-1.0, 1.0).flatten()

    @property
    def reach(self) -> int:
        """Mel frames to each side that a frame's samples depend on, at most."""
        config = self.config
        samples, scale = 0.0, 1
        for rate, kernel in zip(config.rates, config.rate_kernels, strict=True):
            samples += kernel / rate / scale
            scale *= rate
            inner = (
                sum((dilation + 1) * (kernel - 1) // 2 + 2 * _FILTER_REACH for dilation in dilations)
                for kernel, dilations in zip(config.kernels, config.dilations, strict=True)
            )
            samples += max(inner) / scale
        return _EDGE + math.ceil(samples + (_FILTER_REACH + _EDGE) / scale)


def _decibels(mel: torch.Tensor) -> torch.Tensor:
    """Logarithms of amplitudes to [-1, 1]."""
    least = math.exp(-_DECIBELS / 20.0 * math.log(10))
    told = 20.0 * mel.exp().clamp(min=least).log10() - _OFFSET
    return (2.0 * (told + _DECIBELS) / _DECIBELS - 1.0).clamp(-1.0, 1.0)


class _Activation:
    """x + sin^2(a x) / b, computed at twice the rate so that it adds no tones above the band (Snake, Ziyin et al. 2020)."""

    def __init__(self, part: Part, name: str, channels: int) -> None:
        self._alpha = part.take(f"{name}.act.alpha", channels).exp()[:, None]
        self._beta = part.take(f"{name}.act.beta", channels).exp()[:, None] + 1e-9
        self._filter = kaiser_filter(0.5 / _RATIO, 0.6 / _RATIO, _TAPS).to(self._alpha)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        channels = x.shape[1]
        taps = self._filter.expand(channels, 1, -1)
        pad, cut = _TAPS // _RATIO - 1, (_TAPS // _RATIO - 1) * _RATIO + (_TAPS - _RATIO) // 2
        wide = functional.pad(x, (pad, pad), mode="replicate")
        wide = _RATIO * functional.conv_transpose1d(wide, taps, stride=_RATIO, groups=channels)[..., cut:-cut]
        wide = wide + (wide * self._alpha).sin().square() / self._beta
        wide = functional.pad(wide, (_TAPS // 2 - 1, _TAPS // 2), mode="replicate")
        return functional.conv1d(wide, taps, stride=_RATIO, groups=channels)


class _Block:
    """Pairs of convolutions, each around what it adds to."""

    def __init__(self, part: Part, name: str, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        self._dilations = dilations
        self._kernel = kernel
        self._convs = [
            [self._take(part, f"{name}.{convs}.{at}", channels) for convs in ("convs1", "convs2")]
            for at in range(len(dilations))
        ]
        self._smooth = [_Activation(part, f"{name}.activations.{at}", channels) for at in range(2 * len(dilations))]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for at, (dilation, (spread, dense)) in enumerate(zip(self._dilations, self._convs, strict=True)):
            inner = self._conv(self._smooth[2 * at](x), spread, dilation)
            x = x + self._conv(self._smooth[2 * at + 1](inner), dense, 1)
        return x

    def _take(self, part: Part, name: str, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        return part.take(f"{name}.weight", channels, channels, self._kernel), part.take(f"{name}.bias", channels)

    def _conv(self, x: torch.Tensor, conv: tuple[torch.Tensor, torch.Tensor], dilation: int) -> torch.Tensor:
        return functional.conv1d(x, *conv, dilation=dilation, padding=dilation * (self._kernel - 1) // 2)


def kaiser_filter(cutoff: float, half_width: float, taps: int) -> torch.Tensor:
    """[taps] float32: a low-pass filter by the Kaiser window (Kaiser 1974), for an even number of taps.

    Args:
        cutoff: In cycles per sample.
        half_width: Of the transition, in cycles per sample.
    """
    attenuation = 2.285 * (taps // 2 - 1) * math.pi * 4 * half_width + 7.95
    if attenuation > 50:
        beta = 0.1102 * (attenuation - 8.7)
    elif attenuation >= 21:
        beta = 0.5842 * (attenuation - 21) ** 0.4 + 0.07886 * (attenuation - 21)
    else:
        beta = 0.0
    window = torch.kaiser_window(taps, periodic=False, beta=beta, dtype=torch.float32)
    times = torch.arange(-(taps // 2), taps // 2) + 0.5
    shaped = 2 * cutoff * window * torch.sinc(2 * cutoff * times)
    return shaped / shaped.sum()
