"""A tiny model as one GGUF file, with the names, row order and offsets of llama.cpp's converter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.models.tiny_families import TINY_FAMILIES, TinyFamily
from edgewise.models.tiny_vocab import TinyVocab
from edgewise.models.tiny_weights import DtypeName, Named, TinyShape, encode, generate_weights
from edgewise.models.weights.write import GGUFValue, StoredTensor, write_gguf

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_POST_NORMS = ("post_attention_norm", "ffn_norm", "post_ffw_norm")
_EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"\bexperts\.\d+\.")


def write_tiny_gguf(
    path: Path,
    shape: TinyShape,
    vocab: TinyVocab,
    context: int,
    seed: int,
    dtype: DtypeName,
    header: Mapping[str, Any],
) -> None:
    """Write the file; `header` adds to its metadata.

    Raises:
        ValueError: The family has no GGUF architecture of its own.
    """
    family = TINY_FAMILIES[shape.family]
    if family.gguf is None:
        raise ValueError(f"family {shape.family!r} has no GGUF architecture of its own: use 'llama'")
    metadata = _metadata(family, shape, vocab, context) | dict(header)
    write_gguf(path, metadata, list(_tensors(family, shape, seed, dtype)))


def _tensors(family: TinyFamily, shape: TinyShape, seed: int, dtype: DtypeName) -> Iterator[StoredTensor]:
    """Vectors stay F32, as GGUF tools keep them."""
    stacks: dict[str, list[NDArray[np.float32]]] = {}
    names = _names(family)
    for name, array in generate_weights(shape, seed):
        target, values = _convert(name, array, family, shape, names)
        if _EXPERT.search(name):
            stacks.setdefault(target, []).append(values)
        else:
            yield encode(target, values, dtype if values.ndim > 1 else "F32")
    for target, parts in stacks.items():
        yield encode(target, np.stack(parts), dtype)


def _names(family: TinyFamily) -> dict[str, str]:
    """Stored stem -> GGUF stem; an expert's number is left out."""
    names = dict(_NAMES)
    if family.post_norms is not None:
        names |= dict(zip(family.post_norms, _POST_NORMS, strict=True))
    if family.experts is not None:
        router, *parts = family.experts
        names |= dict(zip((router, *(part.replace("{}.", "") for part in parts)), _EXPERTS, strict=True))
    return names


def _convert(
    name: str, array: NDArray[np.float32], family: TinyFamily, shape: TinyShape, names: dict[str, str]
) -> Named:
    stem, _, kind = name.rpartition(".")
    layer = _LAYER.fullmatch(stem)
    part = _EXPERT.sub("experts.", layer[2]) if layer else stem
    if family.offset_norms and part.endswith("norm"):
        array = array + np.float32(1.0)
    if family.paired and part in ("self_attn.q_proj", "self_attn.k_proj"):
        array = _pairs(array, shape.head_dim)
    prefix = f"blk.{layer[1]}." if layer else ""
    return f"{prefix}{names[part]}.{kind}", array


def _pairs(array: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Both halves of each head interleaved: adjacent rows rotate together."""
    halves = array.reshape(-1, 2, head_dim // 2, array.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _metadata(family: TinyFamily, shape: TinyShape, vocab: TinyVocab, context: int) -> dict[str, GGUFValue]:
    special = family.chat.special
    padding = [f"<unused{index}>" for index in range(shape.vocab - len(vocab.tokens))]
    normal = len(vocab.tokens) - len(special)
    rotary = int(shape.head_dim * family.config.get("partial_rotary_factor", 1.0))
    sizes: dict[str, GGUFValue] = {
        "vocab_size": shape.vocab,
        "context_length": context,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.intermediate,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": rotary,
        "rope.freq_base": 10000.0,
    }
    if family.gguf == "qwen3moe":
        sizes["expert_feed_forward_length"] = shape.intermediate
    sizes |= dict(family.header)
    return {
        "general.architecture": family.gguf or "",
        "general.name": "tiny random model",
        **{f"{family.gguf}.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*vocab.tokens, *padding],
        "tokenizer.ggml.token_type": [3] * len(special) + [1] * normal + [5] * len(padding),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in vocab.merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": family.ends_turn,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": family.chat.template,
    }
