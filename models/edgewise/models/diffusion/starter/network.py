"""The network of the starter picture model: a transformer on large patches of pixels that predicts the finished picture.

Prompt and picture are one sequence with shared weights (Esser et al. 2024 use two sets; a small model has no room for that).
Large patches work because the network predicts the picture itself, which lies on a surface of few dimensions, and neither noise
nor velocity, which do not (Li & He 2025, "Back to Basics: Let Denoising Generative Models Denoise"). So 128 x 128 pixels in
patches of 8 cost what 64 x 64 in patches of 4 would, without a separate coder.

Other parts: adaptive normalization with one set of matrices for all layers and an offset per layer (Chen et al. 2023, PixArt),
normalized queries and keys (Henry et al. 2020), rotary places in two dimensions (Su et al. 2021), SwiGLU (Shazeer 2020).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from edgewise.models.diffusion.starter.config import StarterConfig

_FREQUENCIES = 128  # of the time's sines and cosines, each
_TIME_SCALE = 1000.0
_ROPE_BASE = 100.0  # positions are few


@dataclass(frozen=True, slots=True)
class TextStates:
    """What the network reads of a batch of prompts.

    Attributes:
        tokens: [batch, text_tokens, text_width], states of the encoder's last layer.
        mask: [batch, text_tokens] bool, where there is a token.
        pooled: [batch, text_width], unit length.
        given: [batch] bool; False where there is no prompt at all, whatever the other fields hold.
    """

    tokens: Tensor
    mask: Tensor
    pooled: Tensor
    given: Tensor


@dataclass(frozen=True, slots=True)
class Conditions:
    """What every layer reads beside the sequence: `mods` [batch, 6, width], `ends` [batch, 2, width], rotary `cos` and `sin`
    [tokens, head / 2]."""

    mods: Tensor
    ends: Tensor
    cos: Tensor
    sin: Tensor


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


def _modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return torch.addcmul(shift, _norm(x), 1 + scale)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Layer(nn.Module):
    """Attention and feed-forward part, both scaled, shifted and gated by the conditions."""

    def __init__(self, config: StarterConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.offsets = nn.Parameter(torch.zeros(6, width))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_gain = nn.Parameter(torch.ones(width // config.heads))
        self.k_gain = nn.Parameter(torch.ones(width // config.heads))
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, width, bias=False)

    def forward(self, x: Tensor, conditions: Conditions) -> Tensor:
        """[batch, tokens, width] -> the same."""
        mods = (conditions.mods + self.offsets)[:, :, None].unbind(1)
        x = torch.addcmul(x, mods[2], self._attend(_modulate(x, mods[0], mods[1]), conditions))
        gate, value = self.up(_modulate(x, mods[3], mods[4])).chunk(2, dim=-1)
        return torch.addcmul(x, mods[5], self.down(F.silu(gate) * value))

    def _attend(self, x: Tensor, conditions: Conditions) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q = _rotate(_norm(q) * self.q_gain, conditions.cos, conditions.sin).to(v.dtype)
        k = _rotate(_norm(k) * self.k_gain, conditions.cos, conditions.sin).to(v.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return result


class StarterNetwork(nn.Module):
    """Predicts the finished picture from a noisy one, the time and the prompt. Time 0 is noise, 1 the picture."""

    place: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(self, config: StarterConfig) -> None:
        super().__init__()
        self.config = config
        width, values = config.width, 3 * config.patch**2
        self.inlet = nn.Linear(values, width)
        self.text = nn.Linear(config.text_width, width)
        self.pooled = nn.Linear(config.text_width, width)
        self.text_place = nn.Parameter(torch.randn(config.text_tokens, width) * 0.02)
        self.no_token = nn.Parameter(torch.zeros(width))
        self.no_prompt = nn.Parameter(torch.zeros(config.text_tokens, width))
        self.no_pooled = nn.Parameter(torch.zeros(width))
        self.time = nn.Sequential(nn.Linear(2 * _FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.mods = nn.Linear(width, 6 * width)
        self.ends = nn.Linear(width, 2 * width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.depth))
        self.outlet = nn.Linear(width, values)
        self.smooth = _smoother(config.smooth) if config.smooth else None
        self.register_buffer("place", _places(config.side, width), persistent=False)
        for name, table in zip(("cos", "sin"), _rotary(config), strict=True):
            self.register_buffer(name, table, persistent=False)
        self._initialize()

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for start in (self.mods, self.ends, self.outlet):  # every layer begins as the identity (Peebles & Xie 2023)
            nn.init.zeros_(start.weight)
        if self.smooth is not None:
            nn.init.zeros_(self.smooth[-1].weight)  # type: ignore[arg-type] # a convolution's weight is a tensor

    def forward(self, noisy: Tensor, time: Tensor, text: TextStates) -> Tensor:
        """The finished picture, as far as it can be guessed.

        Args:
            noisy: [batch, 3, size, size], time * picture + (1 - time) * noise; pictures lie in [-1, 1].
            time: [batch], in [0, 1].

        Returns:
            [batch, 3, size, size], float32.
        """
        x, conditions = self.enter(noisy, time, text)
        for layer in self.layers:
            x = layer(x, conditions)
        return self.leave(x, conditions)

    def walk(self, noisy: Tensor, time: Tensor, text: TextStates) -> Generator[None, None, Tensor]:
        """`forward`, pausing before every layer."""
        x, conditions = self.enter(noisy, time, text)
        for layer in self.layers:
            yield
            x = layer(x, conditions)
        return self.leave(x, conditions)

    def enter(self, noisy: Tensor, time: Tensor, text: TextStates) -> tuple[Tensor, Conditions]:
        """The sequence, prompt first, and the conditions."""
        patches = F.pixel_unshuffle(noisy, self.config.patch).flatten(2).transpose(1, 2)
        words = torch.where(text.mask[..., None], self.text(text.tokens), self.no_token.to(noisy.dtype))
        words = torch.where(text.given[:, None, None], words, self.no_prompt) + self.text_place
        x = torch.cat((words, self.inlet(patches) + self.place), dim=1)
        condition = self._condition(time, text)
        mods = self.mods(condition).view(len(noisy), 6, -1)
        return x, Conditions(mods, self.ends(condition).view(len(noisy), 2, -1), self.cos, self.sin)

    def modulations(self, time: Tensor, text: TextStates) -> Tensor:
        """What every layer is modulated with at the times [n], for one prompt: [n, 6 * width]."""
        found: Tensor = self.mods(self._condition(time, text))
        return found

    def _condition(self, time: Tensor, text: TextStates) -> Tensor:
        pooled = torch.where(
            text.given[:, None], self.pooled(text.pooled * text.pooled.shape[-1] ** 0.5), self.no_pooled
        )
        return F.silu(self.time(_waves(time).to(text.pooled.dtype)) + pooled)

    def leave(self, x: Tensor, conditions: Conditions) -> Tensor:
        """The picture in the sequence."""
        shift, scale = conditions.ends[:, :, None].unbind(1)
        patches = self.outlet(_modulate(x[:, self.config.text_tokens :], shift, scale))
        side = self.config.side
        flat = F.pixel_shuffle(patches.transpose(1, 2).unflatten(2, (side, side)), self.config.patch)
        return (flat if self.smooth is None else flat + self.smooth(flat)).float()


def _smoother(channels: int) -> nn.Sequential:
    inner = nn.Conv2d(3, channels, 3, padding=1)
    return nn.Sequential(inner, nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))


def _waves(time: Tensor) -> Tensor:
    """[batch] -> [batch, 2 * _FREQUENCIES]."""
    rates = torch.exp(-math.log(10_000.0) / _FREQUENCIES * torch.arange(_FREQUENCIES, device=time.device))
    angles = time.float()[:, None] * _TIME_SCALE * rates
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def _places(side: int, width: int) -> Tensor:
    """Fixed sines and cosines of row and column, [side * side, width]."""
    rates = _ROPE_BASE ** -(torch.arange(width // 4) / (width // 4))
    angles = torch.arange(side)[:, None] * rates
    waves = torch.cat((angles.sin(), angles.cos()), dim=1)
    rows, columns = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
    return torch.cat((rows, columns), dim=-1).reshape(side * side, width).contiguous()


def _rotary(config: StarterConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [text_tokens + side * side, head / 2]: half turn with the row, half with the column; words do not."""
    quarter, side = config.width // config.heads // 4, config.side
    rates = _ROPE_BASE ** -(torch.arange(quarter) / quarter)
    steps = torch.arange(side)[:, None] * rates
    rows, columns = steps[:, None].expand(-1, side, -1), steps[None].expand(side, -1, -1)
    angles = torch.cat((rows, columns), dim=-1).reshape(side * side, 2 * quarter)
    angles = torch.cat((torch.zeros(config.text_tokens, 2 * quarter), angles))
    return angles.cos(), angles.sin()
