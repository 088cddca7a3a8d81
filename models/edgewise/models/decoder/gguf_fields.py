"""Fields of `DecoderConfig` from the metadata of a GGUF header. Keys as in the GGUF specification of ggml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgewise.core.errors import UnsupportedModel
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.models.decoder.fields import Fields
from edgewise.models.decoder.gguf_families import GGUF_FAMILIES, GGUFFamily, Keys, Shapes
from edgewise.models.decoder.hf_fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS
from edgewise.models.decoder.hf_rope import yarn_scale

# Features that would change the result, with the values that do not; each key is prefixed with the architecture.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "attention.sliding_window": (0,),
    "attention.scale": (),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "pooling_type": (0,),
    "expert_gating_func": (1,),  # softmax
    "expert_weights_scale": (0.0, 1.0),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_group_count": (0, 1),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "rope.dimension_sections": (),
    "use_parallel_residual": (False,),
}


def parse(metadata: Mapping[str, Any], tensors: Shapes | None, name: str) -> dict[str, Any]:
    fields = Fields(metadata, name)
    arch = fields.get("general.architecture")
    if arch not in GGUF_FAMILIES:
        supported = ", ".join(GGUF_FAMILIES)
        raise UnsupportedModel(f"{name}: the architecture is {arch!r}; this build supports {supported}.")
    how, keys = GGUF_FAMILIES[arch], Keys(fields=fields, arch=arch, tensors=tensors)
    fields.refuse_unless_neutral({keys.name(key): values for key, values in _NEUTRAL.items() if key not in how.handles})
    values = _plain(keys, how)
    return values | how.read(keys, values)


def _plain(keys: Keys, how: GGUFFamily) -> dict[str, Any]:
    """What all architectures write alike."""
    layers = keys.size("block_count", most=MAX_LAYERS)
    heads = _heads(keys.fields, keys.name("attention.head_count"), None)
    hidden = keys.size("embedding_length")
    max_position = keys.size("context_length")
    head_dim = _head_dim(keys, max(1, hidden // heads), how.partial)
    ffn = keys.size("feed_forward_length", keys.get("expert_feed_forward_length"))
    return {
        "architecture": how.family,
        "vocab_size": _vocab_size(keys),
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": _heads(keys.fields, keys.name("attention.head_count_kv"), heads),
        "head_dim": head_dim,
        "rotary_dim": keys.size("rope.dimension_count", head_dim, head_dim),
        "ffn_size": ffn,
        "rms_eps": keys.positive("attention.layer_norm_rms_epsilon"),
        "rope": _rope(keys.fields, keys.arch, max_position),
        "windows": (None,) * layers,
        "qk_norm": False,
        "qkv_bias": keys.has("blk.0.attn_q.bias", keys.arch == "qwen2"),
        "output_bias": keys.has("blk.0.attn_output.bias", False),
        "mlp_bias": keys.has("blk.0.ffn_gate.bias", False),
        "tied_embeddings": not keys.has("output.weight", False),
        "max_position": max_position,
        "attention_scale": head_dim**-0.5,
    }


def _heads(fields: Fields, key: str, default: int | None) -> int:
    """A number, or an array with one entry per layer, which must all be equal."""
    value = fields.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return fields.size(key, default, MAX_HEADS)
    if len(set(value)) != 1:
        raise fields.unsupported(key, "the same number of heads in every layer")
    return Fields({key: value[0]}, fields.where).size(key, most=MAX_HEADS)


def _head_dim(keys: Keys, default: int, partial: bool) -> int:
    head_dim = keys.size("attention.key_length", default, MAX_HEAD_DIM)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.size(key, head_dim) != head_dim and not (partial and key == "rope.dimension_count"):
            raise keys.fields.unsupported(keys.name(key), f"the size of the key heads, {head_dim}")
    return head_dim


def _vocab_size(keys: Keys) -> int:
    if keys.tensors and "token_embd.weight" in keys.tensors:
        return int(keys.tensors["token_embd.weight"][0])
    tokens = keys.fields.get("tokenizer.ggml.tokens", ())
    return keys.size("vocab_size", len(tokens) or None)


def _rope(fields: Fields, family: str, max_position: int) -> RopeParameters:
    theta = fields.positive(f"{family}.rope.freq_base", 10_000.0)
    key = f"{family}.rope.scaling.type"
    kind = fields.get(key, "none")
    scale = f"{family}.rope.scaling."
    if kind == "none":
        fields.refuse_unless_neutral({scale + "factor": (0.0, 1.0), f"{family}.rope.scale_linear": (0.0, 1.0)})
        return RopeParameters(theta=theta)
    factor = fields.positive(scale + "factor")
    if kind == "linear":
        return RopeParameters(kind="linear", theta=theta, factor=factor)
    if kind != "yarn":
        raise fields.unsupported(key, "none, linear and yarn")
    attention = fields.positive(scale + "yarn_attn_factor", fields.positive(scale + "attn_factor", 1.0))
    return RopeParameters(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_max_position=fields.size(scale + "original_context_length", max_position),
        attention_factor=attention * yarn_scale(factor),
        beta_fast=fields.positive(scale + "yarn_beta_fast", 32.0),
        beta_slow=fields.positive(scale + "yarn_beta_slow", 1.0),
    )
