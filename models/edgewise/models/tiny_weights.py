"""Random weights of tiny decoders, equal bit for bit on every platform.

Values are uniform (NumPy's legacy generator, whose stream is frozen by NEP 19; no libm call takes part) with a spread
chosen so that a tiny model behaves like a living one: the residual stream stays near unit size, attention is sharp
enough for the context to matter, and the logits spread by about 2.5, so greedy text neither loops on one token nor ends
at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "mistral", "qwen2", "qwen3")
LOGIT_STD = 2.5
_QK_GAIN = 2.0
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


def generate_weights(shape: TinyShape, seed: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield (Hugging Face name, row-major float32 array) of every tensor in file order."""
    random = np.random.RandomState(seed)

    def draw(*size: int, std: float, mean: float = 0.0) -> NDArray[np.float32]:
        half_width = std * 1.7320508075688772  # uniform on [-a, a] has standard deviation a / sqrt(3)
        values = mean + (2.0 * random.random_sample(size) - 1.0) * half_width
        return values.astype(np.float32)

    def linear(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        return draw(rows, columns, std=gain / columns**0.5)

    head_std = LOGIT_STD / shape.hidden**0.5
    embedding = draw(shape.vocab, shape.hidden, std=head_std if shape.tie_embeddings else 1.0)
    if shape.tie_embeddings:
        embedding[: shape.special] *= _SPECIAL_SCALE
    yield "model.embed_tokens.weight", embedding
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", draw(shape.hidden, std=0.1, mean=1.0)
        for name, rows, gain in (("q", queries, _QK_GAIN), ("k", keys, _QK_GAIN), ("v", keys, 1.5)):
            yield f"{prefix}self_attn.{name}_proj.weight", linear(rows, shape.hidden, gain)
            if shape.family == "qwen2":
                yield f"{prefix}self_attn.{name}_proj.bias", draw(rows, std=0.2)
            if shape.family == "qwen3" and name != "v":
                yield f"{prefix}self_attn.{name}_norm.weight", draw(shape.head_dim, std=0.1, mean=_QK_GAIN)
        yield prefix + "self_attn.o_proj.weight", linear(shape.hidden, queries, 1.5)
        yield prefix + "post_attention_layernorm.weight", draw(shape.hidden, std=0.1, mean=1.0)
        yield prefix + "mlp.gate_proj.weight", linear(shape.intermediate, shape.hidden)
        yield prefix + "mlp.up_proj.weight", linear(shape.intermediate, shape.hidden)
        yield prefix + "mlp.down_proj.weight", linear(shape.hidden, shape.intermediate, 2.0)
    yield "model.norm.weight", draw(shape.hidden, std=0.1, mean=1.0)
    if not shape.tie_embeddings:
        head = draw(shape.vocab, shape.hidden, std=head_std)
        head[: shape.special] *= _SPECIAL_SCALE
        yield "lm_head.weight", head
