"""What the tensors of a decoder are called, in Hugging Face checkpoints and in GGUF files. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.gguf_families import LONG_DIVISORS, ROPE_DIVISORS, SHORT_DIVISORS
from edgewise.models.files import ModelFormat

_HF = {
    "embedding": "embed_tokens.weight",
    "norm": "norm.weight",
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
    "router": "mlp.gate.weight",
    "expert_gate": "mlp.experts.{}.gate_proj.weight",
    "expert_up": "mlp.experts.{}.up_proj.weight",
    "expert_down": "mlp.experts.{}.down_proj.weight",
}
_HF_GEMMA = {
    "attention_post_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
_HF_FAMILIES: Mapping[str, Mapping[str, str]] = {
    "gemma2": _HF_GEMMA,
    "gemma3": _HF_GEMMA,
    "phi3": {"qkv": "self_attn.qkv_proj.", "gate_up": "mlp.gate_up_proj."},
    "glm": {"gate_up": "mlp.gate_up_proj."},
    "glm4": {
        "gate_up": "mlp.gate_up_proj.",
        "attention_post_norm": "post_self_attn_layernorm.weight",
        "ffn_post_norm": "post_mlp_layernorm.weight",
    },
    "mixtral": {
        "router": "block_sparse_moe.gate.weight",
        "expert_gate": "block_sparse_moe.experts.{}.w1.weight",
        "expert_up": "block_sparse_moe.experts.{}.w3.weight",
        "expert_down": "block_sparse_moe.experts.{}.w2.weight",
    },
}
# Models that also see images keep their text model under another name.
_HF_NESTED = ("language_model.model.", "model.language_model.", "model.text_model.", "thinker.model.")
_HF_NESTED_HEADS = ("language_model.lm_head.weight", "thinker.lm_head.weight")
_HF_OTHER_PARTS = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\..+")

_GGUF = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "attention_norm": "attn_norm.weight",
    "attention_post_norm": "post_attention_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "ffn_post_norm": "post_ffw_norm.weight",
    "q": "attn_q.",
    "k": "attn_k.",
    "v": "attn_v.",
    "output": "attn_output.",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "gate": "ffn_gate.",
    "up": "ffn_up.",
    "down": "ffn_down.",
    "router": "ffn_gate_inp.weight",
    "expert_gate": "ffn_gate_exps.weight",
    "expert_up": "ffn_up_exps.weight",
    "expert_down": "ffn_down_exps.weight",
}
_GGUF_FUSED_QKV = "attn_qkv."
_GGUF_FUSED_GATE = frozenset({"phi3", "glm", "glm4"})  # ffn_up holds gate and up
# Buffers that old checkpoints carry and nobody reads.
_IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

# Each head's rotating dimensions lie in pairs in these files, not in halves.
_PAIRED_IN_HF = frozenset({"glm", "glm4"})
_PAIRED_IN_GGUF = frozenset({"llama", "mixtral", "smollm3", "glm", "glm4"})
# Gemma norms multiply by 1 + weight; converters to GGUF store the sum.
_OFFSET_NORMS_IN_HF = frozenset({"gemma2", "gemma3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one model's file.

    Attributes:
        parts: By part; those of layers stand behind `layer` with the layer's number.
        layer: Prefix of a layer.
        head: Of the output head.
        paired: Whether the rotating dimensions of query and key heads lie in pairs.
        norm_offset: Added to stored norm weights.
        stacked: Whether all experts of a layer lie in one tensor.
        unused: Names that the file may also have.
    """

    parts: Mapping[str, str]
    layer: str
    head: str
    paired: bool
    norm_offset: float
    stacked: bool
    unused: frozenset[str]


def names_of(config: DecoderConfig, naming: ModelFormat, stored: Collection[str], *, nested: bool = False) -> Names:
    """The names that a file of that format uses.

    Args:
        stored: All its names, which decide between variants.
        nested: Whether the decoder is part of a larger model.
    """
    return _gguf_names(config, stored) if naming == "gguf" else _hf_names(config, stored, nested)


def _hf_names(config: DecoderConfig, stored: Collection[str], nested: bool) -> Names:
    family = config.architecture
    parts = {**_HF, **_HF_FAMILIES.get(family, {})}
    prefixes = _HF_NESTED if nested or family == "gemma3" else ()
    prefix = next((known for known in prefixes if known + parts["embedding"] in stored), "model.")
    inner_heads = [name for name in _HF_NESTED_HEADS if prefixes and name in stored]
    head = inner_heads[0] if inner_heads else "lm_head.weight"
    unused = {name for name in stored if _IGNORED.fullmatch(name) or (prefixes and _HF_OTHER_PARTS.fullmatch(name))}
    return Names(
        parts={part: prefix + name if part in ("embedding", "norm") else name for part, name in parts.items()},
        layer=prefix + "layers.{}.",
        head=head,
        paired=family in _PAIRED_IN_HF,
        norm_offset=1.0 if family in _OFFSET_NORMS_IN_HF else 0.0,
        stacked=False,
        unused=frozenset(unused | ({head} if config.tied_embeddings else set())),
    )


def _gguf_names(config: DecoderConfig, stored: Collection[str]) -> Names:
    family, parts = config.architecture, dict(_GGUF)
    if f"blk.0.{_GGUF_FUSED_QKV}weight" in stored:
        parts["qkv"] = _GGUF_FUSED_QKV
    if family in _GGUF_FUSED_GATE:
        parts["gate_up"] = parts["up"]
    unused = {ROPE_DIVISORS}
    if config.rope.kind == "longrope":
        unused |= {SHORT_DIVISORS, LONG_DIVISORS}
    return Names(
        parts=parts,
        layer="blk.{}.",
        head="output.weight",
        paired=family in _PAIRED_IN_GGUF,
        norm_offset=0.0,
        stacked=True,
        unused=frozenset(unused),
    )
