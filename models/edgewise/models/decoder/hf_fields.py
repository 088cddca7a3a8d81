"""Fields of `DecoderConfig` from a Hugging Face config.json, with the defaults of transformers' own classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgewise.core.errors import UnsupportedModel
from edgewise.kernels.rope_parameters import RopeKind, RopeParameters
from edgewise.models.decoder.fields import Fields

MAX_LAYERS = 1 << 10
MAX_HEADS = 1 << 12
MAX_HEAD_DIM = 1 << 12
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
# Features of these and neighbouring families that would change the result, with the values that do not.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "quantization_config": (),
    "partial_rotary_factor": (1.0,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "no_rope_layers": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (1.0,),
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
    "scale_emb": (1.0,),
    "scale_depth": (),
    "clip_qkv": (),
    "attention_chunk_size": (),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "alibi": (False,),
}
_ROPE_KEYS: Mapping[RopeKind, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset(),
    "llama3": frozenset({"low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset(
        {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"}
    ),
}
_COMMON_ROPE_KEYS = frozenset(
    {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor"}
)
_QWEN3_HEAD_DIM = 128
_MISTRAL_WINDOW = 4096


def parse(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    fields = Fields(config, name)
    family = _family(fields)
    fields.refuse_unless_neutral(_NEUTRAL)
    layers = fields.size("num_hidden_layers", most=MAX_LAYERS)
    heads = fields.size("num_attention_heads", most=MAX_HEADS)
    hidden = fields.size("hidden_size")
    max_position = fields.size("max_position_embeddings")
    attention_bias = family in ("llama", "qwen3") and fields.flag("attention_bias", False)
    return {
        "architecture": family,
        "vocab_size": fields.size("vocab_size"),
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": fields.size("num_key_value_heads", heads if family == "llama" else None, MAX_HEADS),
        "head_dim": fields.size(
            "head_dim", _QWEN3_HEAD_DIM if family == "qwen3" else max(1, hidden // heads), MAX_HEAD_DIM
        ),
        "ffn_size": fields.size("intermediate_size"),
        "rms_eps": fields.positive("rms_norm_eps", 1e-6),
        "rope": _rope(fields, max_position),
        "windows": _windows(fields, family, layers),
        "qk_norm": family == "qwen3",
        "qkv_bias": family == "qwen2" or attention_bias,
        "output_bias": attention_bias,
        "mlp_bias": family == "llama" and fields.flag("mlp_bias", False),
        "tied_embeddings": fields.flag("tie_word_embeddings", False),
        "max_position": max_position,
    }


def _family(fields: Fields) -> str:
    named = fields.get("architectures")
    if named is None:
        known = {family: family for family in ARCHITECTURES.values()}
        key, found = "model_type", fields.get("model_type")
    else:
        known, key = ARCHITECTURES, "architectures"
        found = named[0] if isinstance(named, list) and len(named) == 1 else named
    if not isinstance(found, str) or found not in known:
        raise UnsupportedModel(f"{fields.where}: '{key}' is {found!r}; this build supports {', '.join(known)}.")
    return known[found]


# --- sliding windows ---


def _windows(fields: Fields, family: str, layers: int) -> tuple[int | None, ...]:
    if family == "llama":
        fields.refuse_unless_neutral({"sliding_window": ()})
        return (None,) * layers
    if family == "mistral":
        given = "sliding_window" not in fields.values or fields.values["sliding_window"] is not None
        window = fields.size("sliding_window", _MISTRAL_WINDOW) if given else None
        kinds = _layer_types(fields, layers)
        if kinds and set(kinds) != {"full_attention" if window is None else "sliding_attention"}:
            raise fields.unsupported("layer_types", "one kind of layer for this family")
        return (window,) * layers
    return _qwen_windows(fields, layers)


def _qwen_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    window = fields.size("sliding_window", 4096) if fields.flag("use_sliding_window", False) else None
    kinds = _layer_types(fields, layers)
    if kinds is None:
        first = fields.get("max_window_layers", 28)
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise fields.bad("max_window_layers", "a whole number, 0 or more")
        return tuple(window if layer >= first else None for layer in range(layers))
    if window is None and "sliding_attention" in kinds:
        raise fields.bad("use_sliding_window", "true when 'layer_types' has sliding_attention")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _layer_types(fields: Fields, layers: int) -> list[str] | None:
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.bad("layer_types", f"a list of {layers} names")
    if not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise fields.unsupported("layer_types", "full_attention and sliding_attention")
    return kinds


# --- rotary position embeddings ---


def _rope(fields: Fields, max_position: int) -> RopeParameters:
    """transformers 5 keeps everything in rope_parameters, 4 had rope_theta and rope_scaling."""
    key = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    raw = fields.get(key) or {}
    if not isinstance(raw, dict):
        raise fields.bad(key, "an object")
    rope = Fields(raw, f"{fields.where}: '{key}'")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_KEYS:
        raise UnsupportedModel(f"{rope.where}: the type {kind!r}; this build supports {', '.join(_ROPE_KEYS)}.")
    for unknown in raw.keys() - _COMMON_ROPE_KEYS - _ROPE_KEYS[kind]:
        if raw[unknown] is not None and kind != "default":
            raise rope.unsupported(unknown, f"models of type {kind} without it")
        if isinstance(raw[unknown], dict | list):  # a table per layer type, sections of multimodal rope
            raise rope.unsupported(unknown, "one table for all layers")
    rope.refuse_unless_neutral({"partial_rotary_factor": (1.0,)})
    theta = rope.positive("rope_theta", fields.positive("rope_theta", 10_000.0))
    if kind == "default":
        return RopeParameters(theta=theta)
    return _scaled_rope(fields, rope, kind, theta, max_position)


def _scaled_rope(fields: Fields, rope: Fields, kind: RopeKind, theta: float, max_position: int) -> RopeParameters:
    if kind == "linear":
        return RopeParameters(kind=kind, theta=theta, factor=rope.positive("factor"))
    holder = fields if fields.get("original_max_position_embeddings") else rope
    original = holder.size("original_max_position_embeddings", max_position)
    if kind == "llama3":
        low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
        if low >= high:
            raise rope.bad("low_freq_factor", f"below high_freq_factor ({high})")
        return RopeParameters(
            kind=kind,
            theta=theta,
            factor=rope.positive("factor"),
            original_max_position=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    factor = rope.positive("factor", max_position / original)
    return RopeParameters(
        kind=kind,
        theta=theta,
        factor=factor,
        original_max_position=original,
        attention_factor=_yarn_attention_factor(rope, factor),
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return rope.positive("attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return yarn_scale(factor, rope.positive("mscale")) / yarn_scale(factor, rope.positive("mscale_all_dim"))
    return yarn_scale(factor)


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """How much longer contexts sharpen attention: 0.1 ln(factor) + 1 (Peng et al. 2023, YaRN, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
