"""Which models the CUDA kernels compute, and what their loop needs. Imports neither torch nor Triton."""

from __future__ import annotations

import importlib.util

from edgewise.kernels.limits import MAX_EXPERTS, PAGE_TOKENS, round_up
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.experts import Experts
from edgewise.models.decoder.memory import weight_bytes
from edgewise.models.decoder.native.formats import Quantize

_FLOAT_BYTES = 4
_SPLIT_TOKENS = 256  # keys of one partial result of attention (`kernels.triton.decode_attention`)
_GRAPH_BYTES = 64 << 20  # what the driver keeps for the graphs of all buckets
_BITS = {"int8": 8.5, "int4": 5, "fp8": 8}  # of a value, its share of a group's scale and minimum counted
_GROUP = 32  # values that share a scale
_GRAIN = 16  # hidden and inner sizes are multiples of this


def why_not(config: DecoderConfig, dtype: str, quantize: str = "none") -> str | None:
    """Why a model is left to the reference's operations on CUDA, as part of a sentence; None where the kernels compute it."""
    heads = config.num_heads * config.head_dim
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if config.experts is not None and (lacking := _lacking_of_experts(config, config.experts, quantize)):
        return lacking
    inner = _inner_sizes(config)
    if dtype not in ("auto", "bfloat16"):
        return f"'dtype' is {dtype}, and the kernels multiply bfloat16"
    if quantize in ("int8", "int4") and any(size % _GROUP for size in (config.hidden_size, heads, *inner)):
        return f"'quantize' is {quantize}, and its sizes are no multiples of {_GROUP}"
    if any(size % _GRAIN for size in (config.hidden_size, *inner)):
        return f"its sizes {' and '.join(map(str, (config.hidden_size, *inner)))} are no multiples of {_GRAIN}"
    return None


def _lacking_of_experts(config: DecoderConfig, experts: Experts, quantize: str) -> str:
    """What the kernels of experts lack for a model; "" if nothing."""
    if experts.count > MAX_EXPERTS:
        return f"it has {experts.count} experts in a layer, and the kernels route to {MAX_EXPERTS} at most"
    if config.mlp_bias:
        return "its experts have biases, which the kernels of experts do not add"
    if quantize == "fp8":
        return "'quantize' is fp8, and the kernels of experts multiply bfloat16, int8 and int4"
    return ""


def _inner_sizes(config: DecoderConfig) -> list[int]:
    """Of feed-forward blocks, and of single experts; each once."""
    kinds = {config.experts_of(layer) for layer in range(config.num_layers)}
    return sorted({config.ffn_size if experts is None else experts.ffn_size for experts in kinds})


def card_weight_bytes(config: DecoderConfig, quantize: Quantize) -> int:
    """Resident bytes of the weights on a card; matrices of integers have scales for groups of 32 values, of fp8 for rows."""
    floats = weight_bytes(config, "bfloat16")
    if quantize == "none":
        return floats
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    experts = [config.experts_of(layer) for layer in range(config.num_layers)]
    inner = sum(config.ffn_size if own is None else own.count * own.ffn_size for own in experts)
    layers = config.hidden_size * (config.num_layers * (2 * queries + 2 * keys) + 3 * inner)
    head = config.vocab_size * config.hidden_size
    gone = layers + (0 if config.tied_embeddings else head)
    rows = config.num_layers * (queries + 2 * keys + 2 * config.hidden_size + 2 * config.ffn_size) + config.vocab_size
    scales = _FLOAT_BYTES * rows if quantize == "fp8" else 0
    return floats - 2 * gone + int((layers + head) * _BITS[quantize] / 8) + scales


def loop_bytes(config: DecoderConfig, max_rows: int, max_context: int) -> int:
    """Upper bound of what a `DecodeLoop` keeps on the card: activations and logits of the largest step, partial results of
    attention, page tables, and the graphs themselves."""
    rows = round_up(max_rows, 32)
    heads = config.num_heads * config.head_dim
    queries = heads + 2 * config.num_kv_heads * config.head_dim
    activations = 3 * config.hidden_size + queries + heads + config.ffn_size + 2 * config.vocab_size
    if config.experts is not None:  # what each of a token's experts computes, logits of the router, routes and tiles
        own = config.experts
        activations += own.per_token * (own.ffn_size + config.hidden_size + 6) + 4 * own.count
    parts = -(-max_context // _SPLIT_TOKENS) * (heads + 2 * config.num_heads)
    tables = -(-max_context // PAGE_TOKENS)
    return rows * (activations + parts + tables) * _FLOAT_BYTES + _GRAPH_BYTES
