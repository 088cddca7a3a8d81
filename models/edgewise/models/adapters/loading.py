"""An adapter in memory, as the decoder's fused products need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from edgewise.kernels.low_rank import LowRank
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.adapters.layout import (
    AdapterLayout,
    Part,
    Product,
    fused_rank,
    product_sizes,
    read_layout,
)
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.files import ModelFiles
from edgewise.models.weights.safetensors import SINGLE, SafetensorsReader


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """`pairs` are the two matrices of each adapted product, by layer and product; scaled already."""

    name: str
    digest: str
    pairs: Mapping[tuple[int, Product], LowRank]

    @property
    def nbytes(self) -> int:
        return sum(pair.down.nbytes + pair.up.nbytes for pair in self.pairs.values())


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedRows:
    """Rows of a step that are computed with an adapter: [R] int64, where the decoder is."""

    adapter: Adapter
    rows: torch.Tensor


def adapter_bytes(layout: AdapterLayout, dtype: torch.dtype) -> int:
    """What `load_adapter` takes: the parts of a fused product stand side by side, zeros between them counted."""
    return layout.elements * dtype.itemsize


def load_adapter(files: AdapterFiles, config: DecoderConfig, *, dtype: torch.dtype, device: torch.device) -> Adapter:
    """Raises as `layout.read_layout`."""
    layout = read_layout(files, config)
    source = ModelFiles(name=files.name, digest=files.digest, format="safetensors", paths={SINGLE: Path(files.weights)})
    sizes = product_sizes(config)
    with closing(SafetensorsReader(source)) as reader:
        pairs = {
            key: _pair(parts, reader, sizes[key[1]], layout.scale, dtype, device) for key, parts in layout.parts.items()
        }
    return Adapter(files.name, files.digest, pairs)


def _pair(
    parts: Sequence[Part],
    reader: SafetensorsReader,
    size: tuple[int, int],
    scale: float,
    dtype: torch.dtype,
    device: torch.device,
) -> LowRank:
    """The matrices of several modules as those of the fused product: A's below each other, B's along the diagonal."""
    rank = fused_rank(parts)
    down, up = torch.zeros((rank, size[1])), torch.zeros((size[0], rank))
    at = 0
    for part in parts:
        columns = slice(at, at + part.rank)
        reader.read_into(part.down, down[columns])
        block = torch.empty((part.rows, part.rank))
        reader.read_into(part.up, block)
        up[part.first : part.first + part.rows, columns] = block * scale
        at += part.rank
    return LowRank(down.to(device, dtype), up.to(device, dtype))
