"""Adapters of a decoder on the native kernels: read as any other, then packed for its step."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.kernels.limits import round_up
from edgewise.kernels.native.adapters import PackedAdapter
from edgewise.kernels.native.formats import PANEL_ROWS, WeightFormat, packed_bytes
from edgewise.models.adapters.layout import AdapterLayout, Product, fused_rank, product_sizes
from edgewise.models.adapters.loading import Adapter
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.native.model import NativeDecoder


@dataclass(frozen=True, slots=True, eq=False)
class NativeAdapter(Adapter):
    """`pairs` is empty: the numbers are in `packed`."""

    packed: PackedAdapter

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes


def pack_adapter(adapter: Adapter, decoder: NativeDecoder) -> NativeAdapter:
    """Raises ValueError if the adapter is of another decoder, or not in float32."""
    return NativeAdapter(adapter.name, adapter.digest, {}, decoder.step.adapt(adapter.pairs))


def native_adapter_bytes(layout: AdapterLayout, config: DecoderConfig) -> int:
    """What `pack_adapter` keeps at most."""
    return sum(_pair_bytes(product, fused_rank(parts), config) for (_, product), parts in layout.parts.items())


def _pair_bytes(product: Product, rank: int, config: DecoderConfig) -> int:
    rows, cols = product_sizes(config)[product]
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = {"qkv": (queries, keys, keys), "gate_up": (2 * round_up(config.ffn_size, PANEL_ROWS),)}.get(
        product, (rows,)
    )
    return packed_bytes(rank, cols, WeightFormat.FLOAT32) + sum(
        packed_bytes(part, rank, WeightFormat.FLOAT32) for part in parts
    )
