"""Random weights of tiny decoders, equal bit for bit on every platform.

Values are uniform (NumPy's legacy generator, whose stream is frozen by NEP 19; no libm call takes part) with a spread
chosen so that a tiny model behaves like a living one: the residual stream stays near unit size, attention is sharp
enough for the context to matter, and the logits spread by about 2.5, so greedy text neither loops on one token nor ends
at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgewise.models.tiny_families import EXPERTS, TINY_FAMILIES, Family, TinyFamily
from edgewise.models.weights.write import StoredTensor

DtypeName = Literal["F32", "F16", "BF16"]
LOGIT_STD = 2.5
_QK_GAIN = 2.0
_POST_GAIN = 9.0
_SPECIAL_SCALE = 0.05  # special tokens get logits near 0 and are almost never drawn: answers end by their length


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """Sizes of a tiny decoder; `special` is the number of leading token ids that are special."""

    family: Family
    vocab: int
    special: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    tie_embeddings: bool


Named = tuple[str, NDArray[np.float32]]


class _Draw(Protocol):
    def __call__(self, *size: int, std: float, mean: float = 0.0) -> NDArray[np.float32]: ...


def generate_weights(shape: TinyShape, seed: int) -> Iterator[Named]:
    """Yield (Hugging Face name, row-major float32 array) of every tensor in file order."""
    random = np.random.RandomState(seed)

    def draw(*size: int, std: float, mean: float = 0.0) -> NDArray[np.float32]:
        half_width = std * 1.7320508075688772  # uniform on [-a, a] has standard deviation a / sqrt(3)
        values = mean + (2.0 * random.random_sample(size) - 1.0) * half_width
        return values.astype(np.float32)

    family = TINY_FAMILIES[shape.family]
    head_std = LOGIT_STD / shape.hidden**0.5
    # Gemma multiplies embeddings by the root of the hidden size.
    embedding_std = 1.0 / shape.hidden**0.5 if family.offset_norms else 1.0
    embedding = draw(shape.vocab, shape.hidden, std=head_std if shape.tie_embeddings else embedding_std)
    if shape.tie_embeddings:
        embedding[: shape.special] *= _SPECIAL_SCALE
    yield "model.embed_tokens.weight", embedding
    for layer in range(shape.layers):
        for name, array in _layer(shape, family, draw):
            yield f"model.layers.{layer}.{name}", array
    yield "model.norm.weight", _norm(family, draw, shape.hidden)
    if not shape.tie_embeddings:
        head = draw(shape.vocab, shape.hidden, std=head_std)
        head[: shape.special] *= _SPECIAL_SCALE
        yield "lm_head.weight", head


def _layer(shape: TinyShape, family: TinyFamily, draw: _Draw) -> Iterator[Named]:
    yield "input_layernorm.weight", _norm(family, draw, shape.hidden)
    attention = list(_attention(shape, family, draw))
    if family.fused_qkv:
        yield "self_attn.qkv_proj.weight", np.concatenate([array for _, array in attention])
    else:
        yield from attention
    queries = shape.heads * shape.head_dim
    yield "self_attn.o_proj.weight", _linear(draw, shape.hidden, queries, 1.5)
    if family.post_norms is None:
        yield "post_attention_layernorm.weight", _norm(family, draw, shape.hidden)
    else:
        after_attention, before, after = family.post_norms
        # Scaled embeddings that are also the head would outweigh what layers add: a token would follow itself.
        gain = _POST_GAIN if family.offset_norms and shape.tie_embeddings else 1.0
        yield after_attention + ".weight", _norm(family, draw, shape.hidden, gain)
        yield before + ".weight", _norm(family, draw, shape.hidden)
        yield after + ".weight", _norm(family, draw, shape.hidden, gain)
    yield from _feed_forward(shape, family, draw)


def _attention(shape: TinyShape, family: TinyFamily, draw: _Draw) -> Iterator[Named]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, rows, gain in (("q", queries, _QK_GAIN), ("k", keys, _QK_GAIN), ("v", keys, 1.5)):
        yield f"self_attn.{name}_proj.weight", _linear(draw, rows, shape.hidden, gain)
        if family.qkv_bias:
            yield f"self_attn.{name}_proj.bias", draw(rows, std=0.2)
        if family.qk_norms and name != "v":
            yield f"self_attn.{name}_norm.weight", _norm(family, draw, shape.head_dim, _QK_GAIN)


def _feed_forward(shape: TinyShape, family: TinyFamily, draw: _Draw) -> Iterator[Named]:
    inner, hidden = shape.intermediate, shape.hidden
    if family.experts is not None:
        router, *parts = family.experts
        yield router + ".weight", _linear(draw, EXPERTS, hidden, 2.0)
        for expert in range(EXPERTS):
            gate, up, down = (part.format(expert) + ".weight" for part in parts)
            yield gate, _linear(draw, inner, hidden)
            yield up, _linear(draw, inner, hidden)
            yield down, _linear(draw, hidden, inner, 2.0)
        return
    gate_array, up_array = _linear(draw, inner, hidden), _linear(draw, inner, hidden)
    if family.fused_gate:
        yield "mlp.gate_up_proj.weight", np.concatenate([gate_array, up_array])
    else:
        yield "mlp.gate_proj.weight", gate_array
        yield "mlp.up_proj.weight", up_array
    yield "mlp.down_proj.weight", _linear(draw, hidden, inner, 2.0)


def _linear(draw: _Draw, rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
    return draw(rows, columns, std=gain / columns**0.5)


def _norm(family: TinyFamily, draw: _Draw, size: int, mean: float = 1.0) -> NDArray[np.float32]:
    return draw(size, std=0.1, mean=mean - 1.0 if family.offset_norms else mean)


def encode(name: str, array: NDArray[np.float32], dtype: DtypeName) -> StoredTensor:
    """A tensor as it is stored, rounded to nearest."""
    if dtype == "F32":
        data = array.astype("<f4").tobytes()
    elif dtype == "F16":
        data = array.astype("<f2").tobytes()
    else:
        bits = array.astype("<f4").view("<u4")
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even; the values are finite and small
        data = (rounded >> 16).astype("<u2").tobytes()
    return StoredTensor(name, array.shape, dtype, data)
