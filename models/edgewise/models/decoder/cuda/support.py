"""Which models the CUDA kernels compute, and what their loop needs. Imports neither torch nor Triton."""

from __future__ import annotations

import importlib.util

from edgewise.kernels.limits import PAGE_TOKENS, round_up
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.memory import weight_bytes
from edgewise.models.decoder.native.formats import Quantize

_FLOAT_BYTES = 4
_SPLIT_TOKENS = 256  # keys of one partial result of attention (`kernels.triton.decode_attention`)
_GRAPH_BYTES = 64 << 20  # what the driver keeps for the graphs of all buckets
_BITS = {"int8": 8.5, "int4": 5}  # of a value, its share of scale and minimum counted
_GROUP = 32  # values that share a scale
_GRAIN = 16  # hidden and inner sizes are multiples of this


def why_not(config: DecoderConfig, dtype: str, quantize: str = "none") -> str | None:
    """Why a model is left to the reference's operations on CUDA, as part of a sentence; None where the kernels compute it."""
    heads = config.num_heads * config.head_dim
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if config.experts is not None:
        return "its feed-forward blocks consist of experts"
    if dtype not in ("auto", "bfloat16"):
        return f"'dtype' is {dtype}, and the kernels multiply bfloat16"
    if quantize != "none" and (config.hidden_size % _GROUP or config.ffn_size % _GROUP or heads % _GROUP):
        return f"'quantize' is {quantize}, and its sizes are no multiples of {_GROUP}"
    if config.hidden_size % _GRAIN or config.ffn_size % _GRAIN:
        return f"its sizes {config.hidden_size} and {config.ffn_size} are no multiples of {_GRAIN}"
    return None


def card_weight_bytes(config: DecoderConfig, quantize: Quantize) -> int:
    """Resident bytes of the weights on a card; matrices that are rounded have scales for groups of 32 values."""
    floats = weight_bytes(config, "bfloat16")
    if quantize == "none":
        return floats
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.ffn_size)
    head = config.vocab_size * config.hidden_size
    gone = config.num_layers * layer + (0 if config.tied_embeddings else head)
    return floats - 2 * gone + int((config.num_layers * layer + head) * _BITS[quantize] / 8)


def loop_bytes(config: DecoderConfig, max_rows: int, max_context: int) -> int:
    """Upper bound of what a `DecodeLoop` keeps on the card: activations and logits of the largest step, partial results of
    attention, page tables, and the graphs themselves."""
    rows = round_up(max_rows, 32)
    heads = config.num_heads * config.head_dim
    queries = heads + 2 * config.num_kv_heads * config.head_dim
    activations = 3 * config.hidden_size + queries + heads + config.ffn_size + 2 * config.vocab_size
    parts = -(-max_context // _SPLIT_TOKENS) * (heads + 2 * config.num_heads)
    tables = -(-max_context // PAGE_TOKENS)
    return rows * (activations + parts + tables) * _FLOAT_BYTES + _GRAPH_BYTES
