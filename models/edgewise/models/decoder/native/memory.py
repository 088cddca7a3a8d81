"""Bytes that a decoder on the native kernels needs, from its configuration alone. Torch-free."""

from __future__ import annotations

import os

from edgewise.kernels.limits import TILE_TOKENS, round_up
from edgewise.kernels.native import library
from edgewise.kernels.native.formats import GROUP, PANEL_ROWS
from edgewise.models.adapters.layout import MAX_RANK
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.native.formats import Quantize, layer_plans, table_plans

_FLOAT_BYTES = 4
_GROUP_FLOATS = 1 << 18  # kGroupFloats in src/plan.cpp
_GROUPS_PER_THREAD = 4  # kGroupsPerThread there
_FUSED_PARTS = 3  # adapted modules of one product at most
_SCRATCH_BYTES = 1 << 20  # attend_scratch in src/kernels.h, of heads up to 256 wide, and a thread's other buffers


def native_weight_bytes(config: DecoderConfig, dtype: str, quantize: Quantize) -> int:
    """Resident bytes of the loaded decoder: packed matrices; norms, biases and rope tables in float32.

    Args:
        dtype: float32 or bfloat16, of matrices that are not quantized.
    """
    matrices = sum(plan.nbytes for plan in layer_plans(config, dtype, quantize))
    matrices += sum(plan.nbytes for plan in table_plans(config, dtype, quantize))
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden = config.hidden_size
    per_layer = (4 if config.post_norms else 2) * hidden + (queries + keys) * config.qk_norm
    per_layer += (queries + 2 * keys) * config.qkv_bias + hidden * config.output_bias
    per_layer += (2 * round_up(config.ffn_size, PANEL_ROWS) + hidden) * config.mlp_bias
    ropes = {config.rope_of(layer) for layer in range(config.num_layers)} - {None}
    rope = len(ropes) * config.max_position * config.rotary_dim
    return matrices + (config.num_layers * per_layer + hidden + rope) * _FLOAT_BYTES


def native_workspace_bytes(
    config: DecoderConfig, max_step_tokens: int, max_running: int, *, adapters: bool = False
) -> int:
    """Upper bound of what a step and the draws after it allocate, on the native pool as it is or, if they are more, on as many
    threads as this process has processors. `adapters`: tokens may be computed with some."""
    rows = max_step_tokens + max_running
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    experts, inner = config.experts, round_up(config.ffn_size, PANEL_ROWS)
    if experts is not None:
        inner = max(0 if all(experts.layers) else inner, round_up(experts.ffn_size, PANEL_ROWS))
    widest = round_up(max(config.hidden_size, queries, inner), GROUP)
    # residual, states and perhaps a branch; projections; attention's result; gate and up; a product's input; angles
    states = 2 + config.post_norms
    a_row = states * config.hidden_size + 2 * queries + 2 * keys + inner + 2 * widest + 2 * config.head_dim
    if experts is not None:  # of each expert of a token: its input twice, gate and up, its result; and the routes
        a_row += experts.per_token * (2 * widest + inner + config.hidden_size + 3) + 2 * round_up(
            experts.count, PANEL_ROWS
        )
        a_row += config.hidden_size
    if adapters:  # what the lower matrices give, and gates and ups apart
        a_row += _FUSED_PARTS * MAX_RANK + 2 * inner
    group = config.num_heads // config.num_kv_heads
    a_token = -(-config.max_position // TILE_TOKENS) * group * (config.head_dim + 2)
    partials = (1 + _GROUPS_PER_THREAD) * max(_GROUP_FLOATS, a_token)
    threads = len(os.sched_getaffinity(0))
    if library.why_not() is None:
        threads = max(threads, library.threads())
    logits = 2 * max_running * config.vocab_size + 6 * config.vocab_size
    return (rows * a_row + threads * partials + logits) * _FLOAT_BYTES + threads * _SCRATCH_BYTES
