"""The vision transformers of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023): a square picture to a row a patch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch.nn.functional import gelu, scaled_dot_product_attention

from edgewise.models.decoder.fields import Fields
from edgewise.models.multimodal.protocol import Slices
from edgewise.models.multimodal.towers.weights import Part

Activation: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU as CLIP was trained with."""
    return x * torch.sigmoid(1.702 * x)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return gelu(x, approximate="tanh")


ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "quick_gelu": quick_gelu,
    "gelu": gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipConfig:
    """Attributes:
    inner: Width of the feed-forward blocks.
    side, patch: Of the picture and of a patch, in pixels.
    clip: A class token before the patches and a norm before the first layer (CLIP); else neither (SigLIP).
    """

    layers: int
    width: int
    heads: int
    inner: int
    side: int
    patch: int
    eps: float
    activation: str
    clip: bool

    @property
    def rows(self) -> int:
        """Of the tower's result for a picture."""
        return (self.side // self.patch) ** 2 + self.clip


def read_clip_config(vision: Fields) -> ClipConfig:
    """Of a vision_config of type clip_vision_model or siglip_vision_model, with transformers' defaults.

    Raises:
        BadModelFile: A number is impossible.
        UnsupportedModel: Another type or activation.
    """
    kind = vision.get("model_type", "clip_vision_model")
    if kind not in ("clip_vision_model", "siglip_vision_model"):
        raise vision.unsupported("model_type", "clip_vision_model and siglip_vision_model")
    clip = kind == "clip_vision_model"
    activation = vision.get("hidden_act", "quick_gelu" if clip else "gelu_pytorch_tanh")
    if activation not in ACTIVATIONS:
        raise vision.unsupported("hidden_act", ", ".join(ACTIVATIONS))
    width, heads = vision.size("hidden_size", 768), vision.size("num_attention_heads", 12)
    if width % heads:
        raise vision.bad("num_attention_heads", f"a divisor of the width {width}")
    return ClipConfig(
        layers=vision.size("num_hidden_layers", 12, 1 << 10),
        width=width,
        heads=heads,
        inner=vision.size("intermediate_size", 3072),
        side=vision.size("image_size", 224),
        patch=vision.size("patch_size", 32 if clip else 16),
        eps=vision.positive("layer_norm_eps", 1e-5 if clip else 1e-6),
        activation=activation,
        clip=clip,
    )


class ClipTower:
    """Keeps the layers that are asked for and no more.

    Args:
        part: The tower's tensors.
        layers: How many layers are computed; all of them by default.
    """

    def __init__(self, config: ClipConfig, part: Part, layers: int | None = None) -> None:
        self.config = config
        width, patch = config.width, config.patch
        self._patches = part.take("embeddings.patch_embedding.weight", width, 3, patch, patch).flatten(1)
        self._bias = None if config.clip else part.take("embeddings.patch_embedding.bias", width)
        self._class = part.take("embeddings.class_embedding", width) if config.clip else None
        self._places = part.take("embeddings.position_embedding.weight", config.rows, width)
        self._norm = part.layer_norm("pre_layrnorm", width, config.eps) if config.clip else None
        count = config.layers if layers is None else layers
        self._layers = [_Layer(config, part, f"encoder.layers.{index}.") for index in range(count)]

    def states(self, pixels: torch.Tensor, wanted: Sequence[int]) -> Slices:
        """States of numbers `wanted`, side by side: [rows, width * len(wanted)]; 0 is before the first layer. A part a layer.

        Args:
            pixels: [side, side, 3], normalised.
        """
        x = self._embedded(pixels, None)
        found = {0: x}
        for number, layer in enumerate(self._layers, start=1):
            yield
            x = layer(x)
            if number in wanted:
                found[number] = x
        return torch.cat([found[number] for number in wanted], dim=-1)

    def last(self, pixels: torch.Tensor, places: torch.Tensor | None = None) -> Slices:
        """After the last layer: [rows, width]. A part a layer.

        Args:
            pixels: A normalised square; with `places` of any side.
            places: [patches] int64, which learned position each patch has; None: each its own.
        """
        x = self._embedded(pixels, places)
        for layer in self._layers:
            yield
            x = layer(x)
        return x

    def _embedded(self, pixels: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
        patch, across = self.config.patch, pixels.shape[0] // self.config.patch
        used = pixels[: across * patch, : across * patch]
        cut = used.reshape(across, patch, across, patch, 3).permute(0, 2, 4, 1, 3).reshape(across * across, -1)
        x = torch.nn.functional.linear(cut, self._patches, self._bias)
        if self._class is not None:
            x = torch.cat([self._class[None], x])
        x = x + (self._places if places is None else self._places[places])
        return x if self._norm is None else self._norm(x)


class _Layer:
    def __init__(self, config: ClipConfig, part: Part, at: str) -> None:
        width = config.width
        self._heads = config.heads
        self._activation = ACTIVATIONS[config.activation]
        self._norms = [part.layer_norm(f"{at}layer_norm{number}", width, config.eps) for number in (1, 2)]
        self._query, self._key, self._value, self._project = (
            part.linear(f"{at}self_attn.{name}", width, width) for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        )
        self._rising = part.linear(f"{at}mlp.fc1", width, config.inner)
        self._falling = part.linear(f"{at}mlp.fc2", config.inner, width)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        normed = self._norms[0](x)
        query, key, value = (
            product(normed).view(x.shape[0], self._heads, -1).transpose(0, 1)[None]
            for product in (self._query, self._key, self._value)
        )
        mixed = scaled_dot_product_attention(query, key, value)[0].transpose(0, 1).flatten(1)
        x = x + self._project(mixed)
        return x + self._falling(self._activation(self._rising(self._norms[1](x))))
