"""Bytes that a decoder needs, from its configuration alone: for the memory ledger and `models fit`. Torch-free."""

from __future__ import annotations

from edgewise.kernels.limits import GATHER_BYTES, PRODUCT_CACHE_BYTES, PRODUCT_ROW_MULTIPLE, SCORE_BYTES, round_up
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.kv_formats import kv_formats, kv_token_bytes

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_FLOAT_BYTES = 4


def weight_bytes(config: DecoderConfig, dtype: str) -> int:
    """Resident bytes of a loaded decoder: matrices and biases in `dtype`, norms and rope tables in float32."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, ffn = config.hidden_size, config.ffn_size
    layer = (queries + 2 * keys) * hidden + hidden * queries + 3 * ffn * hidden
    layer += (queries + 2 * keys) * config.qkv_bias + hidden * config.output_bias
    layer += (2 * ffn + hidden) * config.mlp_bias
    tables = config.vocab_size * hidden * (1 if config.tied_embeddings else 2)
    norms = config.num_layers * (2 * hidden + (queries + keys) * config.qk_norm) + hidden
    rope = config.max_position * config.head_dim
    return (config.num_layers * layer + tables) * _BYTES[dtype] + (norms + rope) * _FLOAT_BYTES


def kv_bytes_per_token(config: DecoderConfig, kv_dtype: str, dtype: str = "bfloat16") -> int:
    """Bytes of one token's keys and values in all layers, scales and 16-bit layers (`kv_formats`) counted.

    Args:
        kv_dtype: The format asked for.
        dtype: Of the weights.
    """
    return kv_token_bytes(config, kv_formats(config, kv_dtype, dtype))


def workspace_bytes(config: DecoderConfig, max_step_tokens: int, max_running: int) -> int:
    """Upper bound of what one step allocates: activations, attention scratch, the logits of `max_running` rows,
    and what math libraries keep for the shapes they meet."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = round_up(max_step_tokens + max_running, PRODUCT_ROW_MULTIPLE)
    # residual, norm and its copy, product; projections, their rotation in four parts and the result; gate, up and act
    activations = 4 * config.hidden_size + 6 * (queries + 2 * keys) + 5 * config.ffn_size
    # scores; keys or values as stored and as float32; queries copied for each tile
    attention = SCORE_BYTES + 3 * GATHER_BYTES
    # as the product leaves them, as float32, and one row in float64 with its sort
    logits = 2 * round_up(max_running, PRODUCT_ROW_MULTIPLE) * config.vocab_size + 6 * config.vocab_size
    return (rows * activations + logits) * _FLOAT_BYTES + attention + PRODUCT_CACHE_BYTES
