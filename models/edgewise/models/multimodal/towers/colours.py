"""Samples of a medium as a vision tower takes them."""

from __future__ import annotations

import torch

from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.pixels import Colours


def normalised(item: Media, colours: Colours, like: torch.Tensor) -> torch.Tensor:
    """[frames, height, width, 3] of a picture or film, on the device and in the dtype of `like`; computed in float32."""
    return shaded(samples(item), colours, like)


def samples(item: Media) -> torch.Tensor:
    """[frames, height, width, 3] uint8."""
    return torch.frombuffer(bytearray(item.content), dtype=torch.uint8).view(item.shape)


def shaded(pixels: torch.Tensor, colours: Colours, like: torch.Tensor) -> torch.Tensor:
    """`samples` as `normalised` gives them."""
    pixels = pixels.to(like.device)
    mean = torch.tensor(colours.mean, device=like.device)
    deviation = torch.tensor(colours.deviation, device=like.device)
    return ((pixels.float() / 255 - mean) / deviation).to(like.dtype)
