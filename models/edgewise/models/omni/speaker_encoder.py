"""ECAPA-TDNN (Desplanques et al. 2020): a sample of a voice, as mel frames, to one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.nn import functional

from edgewise.models.multimodal.towers.weights import Part
from edgewise.models.omni.config import SpeakerConfig

Layer: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""[batch, channels, frames] -> the same with other channels."""
_LEAST_VARIANCE = 1e-12


class SpeakerEncoder:
    """Callable: [batch, frames, mels] -> [batch, outputs]. Needs more frames than a kernel's reach."""

    def __init__(self, config: SpeakerConfig, part: Part, mels: int) -> None:
        channels, kernels, dilations = config.channels, config.kernels, config.dilations
        first = _delay(part, "blocks.0", mels, channels[0], kernels[0], dilations[0])
        self._blocks: list[Layer] = [first, *(_Block(config, part, at) for at in range(1, len(channels) - 1))]
        last = channels[-1]
        self._gather = _delay(part, "mfa", sum(channels[1:-1]), last, kernels[-1], dilations[-1])
        self._tell = _delay(part, "asp.tdnn", 3 * last, config.attention, 1, 1)
        self._weigh = _Conv(part, "asp.conv", config.attention, last, 1, 1)
        self._out = _Conv(part, "fc", 2 * last, config.outputs, 1, 1)

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        x = sample.transpose(1, 2)
        found = []
        for block in self._blocks:
            x = block(x)
            found.append(x)
        return self._out(self._pooled(self._gather(torch.cat(found[1:], dim=1))))[..., 0]

    def _pooled(self, x: torch.Tensor) -> torch.Tensor:
        """Mean and deviation over time, weighted by attention: [batch, 2 * channels, 1]."""
        even = torch.full_like(x[:, :1], 1.0 / x.shape[2])
        seen = torch.cat([x, *(one.expand_as(x) for one in _statistics(x, even))], dim=1)
        weights = self._weigh(torch.tanh(self._tell(seen))).softmax(dim=2)
        return torch.cat(_statistics(x, weights), dim=1)


def _statistics(x: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = (weights * x).sum(2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(2, keepdim=True)
    return mean, variance.clamp(_LEAST_VARIANCE).sqrt()


class _Conv:
    """A convolution over time; what lies beyond the ends is reflected."""

    def __init__(self, part: Part, name: str, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        self._weight = part.take(f"{name}.weight", outputs, inputs, kernel)
        self._bias = part.take(f"{name}.bias", outputs)
        self._dilation = dilation
        reach = dilation * (kernel - 1)
        self._pad = (reach // 2, reach - reach // 2)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x, self._pad, mode="reflect") if any(self._pad) else x
        return functional.conv1d(padded, self._weight, self._bias, dilation=self._dilation)


def _delay(part: Part, name: str, inputs: int, outputs: int, kernel: int, dilation: int) -> Layer:
    conv = _Conv(part, f"{name}.conv", inputs, outputs, kernel, dilation)
    return lambda x: conv(x).relu()


class _Block:
    """Squeeze and excitation around a Res2Net of delays."""

    def __init__(self, config: SpeakerConfig, part: Part, at: int) -> None:
        inputs, width = config.channels[at - 1], config.channels[at]
        name, share = f"blocks.{at}", width // config.scale
        self._scale = config.scale
        self._first = _delay(part, f"{name}.tdnn1", inputs, width, 1, 1)
        self._parts = [
            _delay(part, f"{name}.res2net_block.blocks.{index}", share, share, config.kernels[at], config.dilations[at])
            for index in range(config.scale - 1)
        ]
        self._second = _delay(part, f"{name}.tdnn2", width, width, 1, 1)
        self._squeeze = _Conv(part, f"{name}.se_block.conv1", width, config.squeeze, 1, 1)
        self._excite = _Conv(part, f"{name}.se_block.conv2", config.squeeze, width, 1, 1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        inner = self._second(self._mixed(self._first(x)))
        gate = self._excite(self._squeeze(inner.mean(2, keepdim=True)).relu()).sigmoid()
        return inner * gate + x

    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = x.chunk(self._scale, dim=1)
        mixed, last = [first], None
        for layer, one in zip(self._parts, others, strict=True):
            last = layer(one if last is None else one + last)
            mixed.append(last)
        return torch.cat(mixed, dim=1)
