"""In which format each layer keeps its keys and values. Torch-free."""

from __future__ import annotations

from collections import Counter

from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.longtail.config import LongTailConfig
from edgewise.models.multimodal.config import MultimodalConfig

NetworkConfig = DecoderConfig | LongTailConfig | MultimodalConfig

KV_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}
SCALE_BYTES = 4
_EIGHT_BITS = ("int8", "fp8")


def kv_formats(config: NetworkConfig, kv_dtype: str, dtype: str) -> tuple[str, ...]:
    """One format name per layer.

    In a model that mixes layers with a sliding window and layers that see everything, 8-bit formats are for the latter: they
    hold the long context, and an error in a window of a few hundred tokens has little to average over. Window layers keep the
    weights' own 16-bit type, or bfloat16 beside float32 weights. Where all layers have windows the choice would be void, so
    all take `kv_dtype`.
    """
    windowed = [window is not None for window in config.windows]
    if kv_dtype not in _EIGHT_BITS or all(windowed):
        return (kv_dtype,) * config.num_layers
    wide = dtype if KV_BYTES.get(dtype) == 2 else "bfloat16"
    return tuple(wide if has_window else kv_dtype for has_window in windowed)


def kv_label(formats: tuple[str, ...]) -> str:
    """For people and numeric classes: "int8", or "int8x4+bfloat16x20" where layers differ, most frequent last."""
    counts = Counter(formats)
    if len(counts) == 1:
        return formats[0]
    return "+".join(f"{name}x{count}" for name, count in sorted(counts.items(), key=lambda item: item[1]))


def kv_shapes(config: NetworkConfig) -> list[tuple[int, int]]:
    """KV heads and head size of each layer."""
    if isinstance(config, LongTailConfig):
        return list(zip(config.kv_heads, config.head_dims, strict=True))
    if isinstance(config, MultimodalConfig):
        config = config.text
    return [(config.num_kv_heads, config.head_dim)] * config.num_layers


def kv_token_bytes(config: NetworkConfig, formats: tuple[str, ...]) -> int:
    """Bytes of one token's keys and values in all layers, scales counted."""
    return sum(
        2 * kv_heads * (head_dim * KV_BYTES[name] + (SCALE_BYTES if name in _EIGHT_BITS else 0))
        for name, (kv_heads, head_dim) in zip(formats, kv_shapes(config), strict=True)
    )
