"""Bytes that a decoder needs, from its configuration alone: for the memory ledger and `models fit`. Torch-free."""

from __future__ import annotations

from edgewise.kernels.limits import (
    GATHER_BYTES,
    ONE_SHOT_BYTES,
    PRODUCT_CACHE_BYTES,
    SCORE_BYTES,
    max_row_multiple,
    round_up,
)
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.kv_formats import NetworkConfig, kv_formats, kv_token_bytes
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.native.memory import native_weight_bytes, native_workspace_bytes
from edgewise.models.longtail.config import LongTailConfig
from edgewise.models.multimodal.config import MultimodalConfig

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_FLOAT_BYTES = 4


def weight_bytes(config: NetworkConfig, dtype: str, native: Quantize | None = None) -> int:
    """Resident bytes of a loaded model: matrices and biases in `dtype`, norms and rope tables in float32.

    Args:
        native: How a decoder is packed for the native kernels; None for the reference kernels.
    """
    if isinstance(config, LongTailConfig):
        return config.weight_bytes(dtype)
    if isinstance(config, MultimodalConfig):
        return weight_bytes(config.text, dtype, native) + encoder_bytes(config, dtype)
    if native is not None:
        return native_weight_bytes(config, dtype, native)
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden = config.hidden_size
    attention = (queries + 2 * keys) * hidden + hidden * queries
    attention += (queries + 2 * keys) * config.qkv_bias + hidden * config.output_bias
    weights = sum(attention + _feed_forward(config, layer) for layer in range(config.num_layers))
    weights += config.vocab_rows * hidden * (1 if config.tied_embeddings else 2)
    per_layer = (4 if config.post_norms else 2) * hidden + (queries + keys) * config.qk_norm
    norms = config.num_layers * per_layer + hidden
    ropes = {config.rope_of(layer) for layer in range(config.num_layers)} - {None}
    rope = len(ropes) * config.max_position * config.rotary_dim
    return weights * _BYTES[dtype] + (norms + rope) * _FLOAT_BYTES


def encoder_bytes(config: NetworkConfig, dtype: str) -> int:
    """The part of `weight_bytes` that a model sees or hears with."""
    return config.tower_elements * _BYTES[dtype] if isinstance(config, MultimodalConfig) else 0


def _feed_forward(config: DecoderConfig, layer: int) -> int:
    """Parameters of a layer's feed-forward block."""
    experts, hidden = config.experts_of(layer), config.hidden_size
    if experts is not None:
        return experts.count * (3 * experts.ffn_size * hidden + hidden)
    return 3 * config.ffn_size * hidden + (2 * config.ffn_size + hidden) * config.mlp_bias


def kv_bytes_per_token(config: NetworkConfig, kv_dtype: str, dtype: str = "bfloat16") -> int:
    """Bytes of one token's keys and values in all layers, scales and 16-bit layers (`kv_formats`) counted.

    Args:
        kv_dtype: The format asked for.
        dtype: Of the weights.
    """
    return kv_token_bytes(config, kv_formats(config, kv_dtype, dtype))


def workspace_bytes(
    config: NetworkConfig,
    max_step_tokens: int,
    max_running: int,
    device: str = "cpu",
    *,
    native: Quantize | None = None,
    adapters: bool = False,
) -> int:
    """Upper bound of what one step allocates: activations, attention scratch, the logits of `max_running` rows,
    and what math libraries keep for the shapes they meet. `native` as in `weight_bytes`; `adapters`: where tokens may be
    computed with some."""
    if isinstance(config, LongTailConfig):
        return config.workspace_bytes(max_step_tokens, max_running)
    if isinstance(config, MultimodalConfig):
        return (
            workspace_bytes(config.text, max_step_tokens, max_running, device, native=native) + config.tower_workspace
        )
    if native is not None:
        return native_workspace_bytes(config, max_step_tokens, max_running, adapters=adapters)
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    multiple = max_row_multiple(device)
    rows = round_up(max_step_tokens + max_running, multiple)
    # residual, norm and its copy, product; projections, their rotation in four parts and the result; gate, up and act
    hidden = 4 + config.post_norms
    inner = config.ffn_size
    if config.experts is not None:
        # the rows of one expert, which may be all, its result and the sum of all; probabilities in order, and routes
        hidden += 4
        inner = max(config.experts.ffn_size, 0 if all(config.experts.layers) else inner)
    activations = hidden * config.hidden_size + 6 * (queries + 2 * keys) + 5 * inner
    if config.experts is not None:
        activations += 6 * config.experts.count + 8 * config.experts.per_token
        if device == "cuda":  # what each of a token's experts computes, in 16 bits
            activations += config.experts.per_token * (config.experts.ffn_size + config.hidden_size) // 2
    # scores; keys or values as stored and as float32; queries copied for each tile
    attention = SCORE_BYTES + 3 * GATHER_BYTES
    # as the product leaves them, as float32, and one row in float64 with its sort
    logits = 2 * round_up(max_running, multiple) * config.vocab_size + 6 * config.vocab_size
    if config.devices > 1:
        # what was sent, what came and their sum; the columns of all devices side by side
        activations += 3 * config.hidden_size
        attention += config.devices * ONE_SHOT_BYTES
        logits += round_up(max_running, multiple) * config.vocab_size
    return (rows * activations + logits) * _FLOAT_BYTES + attention + PRODUCT_CACHE_BYTES
