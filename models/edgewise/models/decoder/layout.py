"""Which stored tensor goes where in a decoder's fused tensors, under the names of Hugging Face and of GGUF."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.parameters import DecoderParameters, LayerParameters
from edgewise.models.files import ModelFormat

_HF_LAYER = "model.layers.{}."
_HF_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.",
    "k": "self_attn.k_proj.",
    "v": "self_attn.v_proj.",
    "output": "self_attn.o_proj.",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "gate": "mlp.gate_proj.",
    "up": "mlp.up_proj.",
    "down": "mlp.down_proj.",
}
_GGUF_LAYER = "blk.{}."
_GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "attention_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "q": "attn_q.",
    "k": "attn_k.",
    "v": "attn_v.",
    "output": "attn_output.",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "gate": "ffn_gate.",
    "up": "ffn_up.",
    "down": "ffn_down.",
}
# Buffers that old checkpoints carry and nobody reads.
_IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
GGUF_ROPE_DIVISORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Target:
    """A stored tensor and the view of the decoder's that takes it.

    Attributes:
        name: In the file.
        out: [rows, ...], contiguous.
        interleaved: Rows per head if the file holds each head's halves interleaved (GGUF's llama architecture), else None.
        copies: Further views that take the same values.
    """

    name: str
    out: torch.Tensor
    interleaved: int | None = None
    copies: tuple[torch.Tensor, ...] = ()


def is_ignored(name: str) -> bool:
    return _IGNORED.fullmatch(name) is not None


def head_name(naming: ModelFormat) -> str:
    return (_GGUF_NAMES if naming == "gguf" else _HF_NAMES)["head"]


def targets(config: DecoderConfig, parameters: DecoderParameters, naming: ModelFormat) -> Iterator[Target]:
    """All tensors that the file must hold, in the order of layers."""
    names = _GGUF_NAMES if naming == "gguf" else _HF_NAMES
    yield Target(names["embedding"], parameters.embedding)
    for index, layer in enumerate(parameters.layers):
        prefix = (_GGUF_LAYER if naming == "gguf" else _HF_LAYER).format(index)
        interleaved = config.head_dim if naming == "gguf" and config.architecture == "llama" else None
        for target in _layer_targets(config, layer, names, interleaved):
            yield Target(prefix + target.name, target.out, target.interleaved, target.copies)
    yield Target(names["norm"], parameters.norm)
    if not config.tied_embeddings:
        yield Target(names["head"], parameters.head)


def _layer_targets(
    config: DecoderConfig, layer: LayerParameters, names: dict[str, str], interleaved: int | None
) -> Iterator[Target]:
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    qkv = [(part, count * config.head_dim) for part, count in heads.items()]
    yield Target(names["attention_norm"], layer.attention_norm)
    for part, weight, bias in _parts(qkv, layer.qkv, layer.qkv_bias):
        order = None if part == "v" else interleaved
        yield Target(names[part] + "weight", weight, order)
        if bias is not None:
            yield Target(names[part] + "bias", bias, order)
    if layer.qk_norm is not None:
        norms = list(layer.qk_norm)
        for part, rows in (("q_norm", norms[: heads["q"]]), ("k_norm", norms[heads["q"] :])):
            yield Target(names[part], rows[0], copies=tuple(rows[1:]))
    yield from _whole(names["output"], layer.output, layer.output_bias)
    yield Target(names["ffn_norm"], layer.ffn_norm)
    for part, weight, bias in _parts(
        [("gate", config.ffn_size), ("up", config.ffn_size)], layer.gate_up, layer.gate_up_bias
    ):
        yield from _whole(names[part], weight, bias)
    yield from _whole(names["down"], layer.down, layer.down_bias)


def _parts(
    sizes: list[tuple[str, int]], weight: torch.Tensor, bias: torch.Tensor | None
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """Cut a fused product into the rows of its parts."""
    first = 0
    for part, rows in sizes:
        yield part, weight[first : first + rows], None if bias is None else bias[first : first + rows]
        first += rows


def _whole(name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> Iterator[Target]:
    yield Target(name + "weight", weight)
    if bias is not None:
        yield Target(name + "bias", bias)
