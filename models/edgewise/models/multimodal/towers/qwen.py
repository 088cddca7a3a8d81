"""The vision towers of Qwen2-VL and Qwen2.5-VL: rotary positions in two dimensions, four patches merged into one row.

Qwen2.5-VL's differs in its norms, its feed-forward blocks, and in that most layers attend within windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from edgewise.core.errors import UnsupportedModel
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.pixels import CLIP, Colours, colours, picture_options
from edgewise.models.multimodal.protocol import SlicedEncoder, Slices
from edgewise.models.multimodal.qwen import MLP_ROWS
from edgewise.models.multimodal.towers.clip import quick_gelu
from edgewise.models.multimodal.towers.colours import samples, shaded
from edgewise.models.multimodal.towers.weights import Part, RMSNorm
from edgewise.models.weights.reader import WeightReader

_PREFIXES: Final = ("visual.", "model.visual.")
_EPS: Final = 1e-6
_THETA: Final = 10_000.0
Layer: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
Segments: TypeAlias = Sequence[torch.Tensor]
"""[n, length] int64 each: patches that attend to each other, n groups of one length in a tensor."""


_ACTIVATIONS: Final[Mapping[str, Layer]] = {"quick_gelu": quick_gelu, "silu": silu, "gelu": gelu}


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenTowerConfig:
    """Attributes:
    inner: Of the feed-forward blocks.
    gated: Qwen2.5-VL's blocks: RMS norms, gated feed-forward.
    window: Pixels of a window's side; None where all layers see the whole frame.
    whole_layers: Layers that do so besides.
    """

    layers: int
    width: int
    heads: int
    inner: int
    patch: int
    merge: int
    depth: int
    activation: str
    gated: bool
    window: int | None
    whole_layers: frozenset[int]


def read_tower_config(config: Fields) -> QwenTowerConfig:
    """Of the whole model's configuration.

    Raises:
        BadModelFile: A number is missing or impossible.
        UnsupportedModel: Another activation.
    """
    vision = Fields(config.get("vision_config", {}), config.where)
    gated = config.get("model_type") == "qwen2_5_vl"
    width = vision.size("hidden_size" if gated else "embed_dim", 1280)
    activation = vision.get("hidden_act", "silu" if gated else "quick_gelu")
    if activation not in _ACTIVATIONS:
        raise vision.unsupported("hidden_act", ", ".join(_ACTIVATIONS))
    heads = vision.size("num_heads", 16)
    if width % heads or width // heads % 4:
        raise UnsupportedModel(f"{vision.where}: {heads} heads of a tower of width {width} cannot rotate.")
    return QwenTowerConfig(
        layers=vision.size("depth", 32),
        width=width,
        heads=heads,
        inner=vision.size("intermediate_size", 3420) if gated else int(width * vision.positive("mlp_ratio", 4)),
        patch=vision.size("patch_size", 14),
        merge=vision.size("spatial_merge_size", 2),
        depth=vision.size("temporal_patch_size", 2),
        activation=activation,
        gated=gated,
        window=vision.size("window_size", 112) if gated else None,
        whole_layers=frozenset(vision.get("fullatt_block_indexes", [7, 15, 23, 31])) if gated else frozenset(),
    )


class QwenTower(SlicedEncoder):
    """A `MediaEncoder`."""

    def __init__(self, config: QwenTowerConfig, part: Part, shades: Colours, *, outputs: int) -> None:
        self._config = config
        self._colours = shades
        width = config.width
        taken = part.take("patch_embed.proj.weight", width, 3, config.depth, config.patch, config.patch)
        self._patches = taken.flatten(1).T
        self._blocks = [_Block(config, part, f"blocks.{index}.") for index in range(config.layers)]
        merged = width * config.merge**2
        self._norm = _norm(config, part, "merger.ln_q")
        self._first = part.linear("merger.mlp.0", merged, merged)
        self._second = part.linear("merger.mlp.2", merged, outputs)

    def slices(self, item: Media) -> Slices:
        """See `SlicedEncoder`.

        One position in time after the other, which do not attend to each other: a film takes no more memory than a picture."""
        frames = samples(item)
        if len(frames) < self._config.depth:
            frames = frames.expand(self._config.depth, -1, -1, -1)
        height, width = item.shape[1:3]
        grid = (height // self._config.patch, width // self._config.patch)
        device = self._patches.device
        places = self._angles(grid, device)
        whole = [torch.arange(grid[0] * grid[1], device=device)[None]]
        windows = whole if self._config.window is None else self._windows(grid, device)
        shown = frames.split(self._config.depth)  # type: ignore[no-untyped-call]
        seen = []
        for one in shown:
            rows = yield from self._seen(one, grid, places, whole, windows)
            seen.append(rows)
        return torch.cat(seen)

    def _seen(
        self,
        frames: torch.Tensor,
        grid: tuple[int, int],
        places: tuple[torch.Tensor, torch.Tensor],
        whole: Segments,
        windows: Segments,
    ) -> Slices:
        """[depth, height, width, 3] uint8 -> [rows * columns / merge^2, outputs]."""
        config = self._config
        x = self._cut(shaded(frames, self._colours, self._patches), grid) @ self._patches
        for index, block in enumerate(self._blocks):
            yield
            x = block(x, *places, whole if index in config.whole_layers else windows)
        merged = self._norm(x).view(-1, config.width * config.merge**2)
        return self._second(gelu(self._first(merged)))

    def _cut(self, frames: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """[depth, height, width, 3] -> [patches, 3 * depth * patch * patch], the patches of a merged position together."""
        config = self._config
        rows, columns = grid
        merge, patch = config.merge, config.patch
        cut = frames.reshape(config.depth, rows // merge, merge, patch, columns // merge, merge, patch, 3)
        return cut.permute(1, 4, 2, 5, 7, 0, 3, 6).reshape(rows * columns, -1)

    def _places(self, grid: tuple[int, int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column of each patch, in the order of `_cut`."""
        rows, columns = grid
        merge = self._config.merge
        index = torch.arange(rows * columns, device=device).view(rows // merge, merge, columns // merge, merge)
        order = index.transpose(1, 2).flatten()
        return order // columns, order % columns

    def _angles(self, grid: tuple[int, int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [patches, 1, head / 2]: half of a head's pairs turn by the row, half by the column."""
        half = self._config.width // self._config.heads // 2
        speeds = 1.0 / _THETA ** (torch.arange(0, half, 2, device=device, dtype=torch.float32) / half)
        angles = torch.cat([place[:, None].float() * speeds for place in self._places(grid, device)], dim=-1)
        return angles.cos()[:, None], angles.sin()[:, None]

    def _windows(self, grid: tuple[int, int], device: torch.device) -> Segments:
        """Those at the right and lower edge are smaller."""
        config = self._config
        assert config.window is not None
        side = max(1, config.window // config.patch // config.merge) * config.merge
        row, column = self._places(grid, device)
        name = row // side * -(-grid[1] // side) + column // side
        order = torch.argsort(name, stable=True)
        groups: dict[int, list[torch.Tensor]] = defaultdict(list)
        sizes = torch.unique_consecutive(name[order], return_counts=True)[1]
        for group in torch.split(order, sizes.tolist()):
            groups[len(group)].append(group)
        return [torch.stack(group) for group in groups.values()]


def load_encoder(
    config: Fields,
    files: ModelFiles,
    reader: WeightReader,
    *,
    width: int,
    device: torch.device,
    dtype: torch.dtype,
) -> QwenTower:
    """Raises `BadModelFile`: a tensor is missing or of another shape; `UnsupportedModel`."""
    part = Part(reader, _PREFIXES, device=device, dtype=dtype, name=files.name)
    return QwenTower(read_tower_config(config), part, colours(picture_options(files), CLIP), outputs=width)


def _norm(config: QwenTowerConfig, part: Part, name: str) -> Layer:
    if config.gated:
        return RMSNorm(part.take(f"{name}.weight", config.width), _EPS)
    return part.layer_norm(name, config.width, _EPS)


class _Block:
    def __init__(self, config: QwenTowerConfig, part: Part, at: str) -> None:
        width, inner = config.width, config.inner
        self._heads = config.heads
        self._norms = [_norm(config, part, f"{at}norm{number}") for number in (1, 2)]
        self._qkv = part.linear(f"{at}attn.qkv", width, 3 * width)
        self._project = part.linear(f"{at}attn.proj", width, width)
        self._activation = _ACTIVATIONS[config.activation]
        names = ("gate_proj", "up_proj", "down_proj") if config.gated else ("fc1", "fc2")
        *rising, falling = names
        self._rising = [part.linear(f"{at}mlp.{name}", width, inner) for name in rising]
        self._falling = part.linear(f"{at}mlp.{falling}", inner, width)

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, segments: Segments) -> torch.Tensor:
        x = x + self._attend(self._norms[0](x), cos, sin, segments)
        parts = x.split(MLP_ROWS)  # type: ignore[no-untyped-call]
        return torch.cat([part + self._feed_forward(self._norms[1](part)) for part in parts])

    def _feed_forward(self, normed: torch.Tensor) -> torch.Tensor:
        inner = self._activation(self._rising[0](normed))
        if len(self._rising) > 1:
            inner = inner * self._rising[1](normed)
        return self._falling(inner)

    def _attend(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, segments: Segments) -> torch.Tensor:
        query, key, value = self._qkv(x).view(x.shape[0], 3, self._heads, -1).unbind(1)
        query, key = _turned(query, cos, sin), _turned(key, cos, sin)
        mixed = torch.empty_like(value)
        for segment in segments:
            q, k, v = (tensor[segment].transpose(1, 2) for tensor in (query, key, value))
            mixed[segment] = scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self._project(mixed.flatten(1))


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs are (i, i + half)."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
