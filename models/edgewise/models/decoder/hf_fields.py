"""Fields of `DecoderConfig` from a Hugging Face config.json, with the defaults of transformers' own classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.core.errors import UnsupportedModel
from edgewise.models.decoder.fields import Fields
from edgewise.models.decoder.hf_families import FAMILIES
from edgewise.models.weights.quantization import parse_quantization

MAX_LAYERS = 1 << 10
MAX_HEADS = 1 << 12
MAX_HEAD_DIM = 1 << 12
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "GlmForCausalLM": "glm",
    "Glm4ForCausalLM": "glm4",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
_MODEL_TYPES = {family: family for family in FAMILIES} | {"gemma3_text": "gemma3"}
# Keys beside a text_config that hold for the text model.
_OUTER_KEYS = ("tie_word_embeddings", "quantization_config", "compression_config")
# Features of these and neighbouring families that would change the result, with the values that do not.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
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
_KV_HEADS_OPTIONAL = frozenset({"llama", "phi3", "smollm3", "mixtral"})  # as many as query heads where none are named


def parse(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    family = _family(Fields(config, name))
    how = FAMILIES[family]
    fields = Fields({**how.defaults, **_text_part(Fields(config, name))}, name)
    parse_quantization(fields.values, name)  # refuses what the weights' reader could not read
    fields.refuse_unless_neutral({key: values for key, values in _NEUTRAL.items() if key not in how.handles})
    values = _plain(fields, family)
    return values | how.read(fields, values)


def is_implemented(config: Mapping[str, Any]) -> bool:
    """Whether a config.json names no class at all (`parse` then judges its model_type) or one of `ARCHITECTURES`."""
    named = config.get("architectures")
    return named is None or (isinstance(named, list) and len(named) == 1 and named[0] in list(ARCHITECTURES))


def _plain(fields: Fields, family: str) -> dict[str, Any]:
    """What all families write alike."""
    layers = fields.size("num_hidden_layers", most=MAX_LAYERS)
    heads = fields.size("num_attention_heads", most=MAX_HEADS)
    hidden = fields.size("hidden_size")
    head_dim = fields.size("head_dim", max(1, hidden // heads), MAX_HEAD_DIM)
    return {
        "architecture": family,
        "vocab_size": fields.size("vocab_size"),
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": fields.size("num_key_value_heads", heads if family in _KV_HEADS_OPTIONAL else None, MAX_HEADS),
        "head_dim": head_dim,
        "rotary_dim": head_dim,
        "ffn_size": fields.size("intermediate_size"),
        "rms_eps": fields.positive("rms_norm_eps", 1e-6),
        "windows": (None,) * layers,
        "qk_norm": False,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "tied_embeddings": fields.flag("tie_word_embeddings", False),
        "max_position": fields.size("max_position_embeddings"),
        "attention_scale": head_dim**-0.5,
    }


def _text_part(fields: Fields) -> Mapping[str, Any]:
    """Models that also see images keep what concerns text in text_config."""
    text = fields.get("text_config")
    if text is None:
        return fields.values
    if not isinstance(text, dict):
        raise fields.bad("text_config", "an object")
    return {key: fields.values[key] for key in _OUTER_KEYS if key in fields.values} | text


def _family(fields: Fields) -> str:
    named = fields.get("architectures")
    if named is None:
        known, key, found = _MODEL_TYPES, "model_type", fields.get("model_type")
    else:
        known, key = ARCHITECTURES, "architectures"
        found = named[0] if isinstance(named, list) and len(named) == 1 else named
    if not isinstance(found, str) or found not in known:
        raise UnsupportedModel(f"{fields.where}: '{key}' is {found!r}; this build supports {', '.join(known)}.")
    return known[found]
