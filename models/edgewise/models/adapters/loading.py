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
from edgewise.models.decoder.parallel import ALONE, Place
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


def adapter_bytes(layout: AdapterLayout, dtype: torch.dtype, config: DecoderConfig) -> int:
    """What `load_adapter` takes: the parts of a fused product stand side by side, zeros between them counted.

    Args:
        config: Of one device, where several compute the model together; the matrix that is not cut is whole on each.
    """
    sizes = product_sizes(config)
    return sum(sum(sizes[product]) * fused_rank(parts) for (_, product), parts in layout.parts.items()) * dtype.itemsize


def load_adapter(
    files: AdapterFiles, config: DecoderConfig, *, dtype: torch.dtype, device: torch.device, share: Place = ALONE
) -> Adapter:
    """Raises as `layout.read_layout`.

    Args:
        config: Of the whole model.
        share: A device's place among several; it holds what belongs to its rows or columns of each product alone.
    """
    layout = read_layout(files, config)
    source = ModelFiles(name=files.name, digest=files.digest, format="safetensors", paths={SINGLE: Path(files.weights)})
    sizes = product_sizes(config)
    with closing(SafetensorsReader(source)) as reader:
        pairs = {}
        for key, parts in layout.parts.items():
            pair = _pair(parts, reader, sizes[key[1]], layout.scale)
            own = pair if share.size == 1 else own_part(pair, key[1], config, share)
            pairs[key] = LowRank(own.down.to(device, dtype), own.up.to(device, dtype))
    return Adapter(files.name, files.digest, pairs)


def own_part(pair: LowRank, product: Product, config: DecoderConfig, share: Place) -> LowRank:
    """A device's part: of products that are cut by rows some of B's, of those cut by columns some of A's. The parts of the latter
    are summed with those of the product itself."""
    own = config.shard(share.size)
    heads, keys, inner = own.num_heads * own.head_dim, own.num_kv_heads * own.head_dim, own.ffn_size
    places = {
        "qkv": [
            (heads, share.rank, share.size),
            *2 * [(keys, share.rank // own.kv_replicas, share.size // own.kv_replicas)],
        ],
        "output": [(heads, share.rank, share.size)],
        "gate_up": 2 * [(inner, share.rank, share.size)],
        "down": [(inner, share.rank, share.size)],
    }
    picked, before = [], 0
    for size, index, shares in places[product]:
        picked.append(torch.arange(before + index * size, before + (index + 1) * size))
        before += size * shares
    if product in ("output", "down"):
        return LowRank(pair.down[:, torch.cat(picked)], pair.up)
    return LowRank(pair.down, pair.up[torch.cat(picked)])


def _pair(
    parts: Sequence[Part],
    reader: SafetensorsReader,
    size: tuple[int, int],
    scale: float,
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
    return LowRank(down, up)
