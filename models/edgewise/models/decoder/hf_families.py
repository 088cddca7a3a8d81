"""What each family's config.json says beyond the plain case, with the defaults of transformers' own classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from edgewise.models.decoder.experts import Experts
from edgewise.models.decoder.fields import Fields
from edgewise.models.decoder.hf_rope import read_rope, read_rotary_dim, read_two_ropes

MAX_EXPERTS = 1 << 12

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How to read a family.

    Attributes:
        read: From the file's fields and the plain values to those that replace or complete them; "rope" is always among them.
        defaults: What transformers' class takes where the file has no such key.
        handles: Keys that `read` understands and that are refused elsewhere.
    """

    read: Callable[[Fields, Values], Values]
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    handles: frozenset[str] = frozenset()


# --- families without experts ---


def _llama(fields: Fields, values: Values) -> Values:
    fields.refuse_unless_neutral({"sliding_window": ()})
    return {**_one_rope(fields, values), **_attention_bias(fields), "mlp_bias": fields.flag("mlp_bias", False)}


def _mistral(fields: Fields, values: Values) -> Values:
    windows = _same_window(fields, values, "sliding_window")
    kinds = _layer_types(fields, values["num_layers"])
    if kinds and set(kinds) != {"full_attention" if windows[0] is None else "sliding_attention"}:
        raise fields.unsupported("layer_types", "one kind of layer for this family")
    return {**_one_rope(fields, values), "windows": windows}


def _qwen2(fields: Fields, values: Values) -> Values:
    return {**_one_rope(fields, values), "windows": _qwen_windows(fields, values["num_layers"]), "qkv_bias": True}


def _qwen3(fields: Fields, values: Values) -> Values:
    windows = _qwen_windows(fields, values["num_layers"])
    return {**_one_rope(fields, values), **_attention_bias(fields), "windows": windows, "qk_norm": True}


def _smollm3(fields: Fields, values: Values) -> Values:
    layers = values["num_layers"]
    rotates = _rotating_layers(fields, layers)
    window = fields.size("sliding_window") if fields.get("sliding_window") is not None else None
    window = window if fields.flag("use_sliding_window", False) else None
    kinds = _layer_types(fields, layers) or ["full_attention" if turned else "sliding_attention" for turned in rotates]
    return {
        **_one_rope(fields, values),
        **_attention_bias(fields),
        "mlp_bias": fields.flag("mlp_bias", False),
        "windows": tuple(window if kind == "sliding_attention" else None for kind in kinds),
        "unrotated": frozenset(layer for layer, turned in enumerate(rotates) if not turned),
    }


def _gemma2(fields: Fields, values: Values) -> Values:
    return {
        **_one_rope(fields, values),
        **_gemma(fields, values, pattern=2),
        "attention_softcap": fields.optional_positive("attn_logit_softcapping"),
    }


def _gemma3(fields: Fields, values: Values) -> Values:
    wide, near = read_two_ropes(fields, values["head_dim"], values["max_position"])
    pattern = fields.size("_sliding_window_pattern", fields.size("sliding_window_pattern", 6))
    return {**_gemma(fields, values, pattern), "rope": wide, "local_rope": near, "qk_norm": True}


def _gemma(fields: Fields, values: Values, pattern: int) -> Values:
    activation = fields.get("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise fields.unsupported("hidden_activation", "gelu_pytorch_tanh")
    layers = values["num_layers"]
    window = fields.size("sliding_window") if fields.get("sliding_window") is not None else None
    kinds = _layer_types(fields, layers)
    near = (
        [kind == "sliding_attention" for kind in kinds] if kinds else [bool((i + 1) % pattern) for i in range(layers)]
    )
    return {
        **_attention_bias(fields),
        "windows": tuple(window if is_near else None for is_near in near),
        "activation": "gelu_tanh",
        "post_norms": True,
        "embedding_scale": values["hidden_size"] ** 0.5,
        "attention_scale": fields.positive("query_pre_attn_scalar", 256) ** -0.5,
        "logit_softcap": fields.optional_positive("final_logit_softcapping"),
    }


def _phi3(fields: Fields, values: Values) -> Values:
    rope = fields.get("rope_scaling") or fields.get("rope_parameters")
    if isinstance(rope, dict):
        kind = rope.get("rope_type", rope.get("type"))
        if kind in ("su", "yarn"):  # names of longrope in the first files of this family
            fields = Fields({**fields.values, "rope_scaling": {**rope, "rope_type": "longrope"}}, fields.where)
    return {**_partial_rope(fields, values, 1.0), "windows": _same_window(fields, values, "sliding_window")}


def _glm(fields: Fields, values: Values) -> Values:
    return {**_partial_rope(fields, values, 0.5), "qkv_bias": fields.flag("attention_bias", True)}


def _glm4(fields: Fields, values: Values) -> Values:
    return {**_glm(fields, values), "post_norms": True}


# --- families with experts ---


def _mixtral(fields: Fields, values: Values) -> Values:
    experts = Experts(
        count=fields.size("num_local_experts", fields.size("num_experts", 8, MAX_EXPERTS), MAX_EXPERTS),
        per_token=fields.size("num_experts_per_tok", 2),
        ffn_size=values["ffn_size"],
        normalised=True,
        layers=(True,) * values["num_layers"],
    )
    return {**_one_rope(fields, values), "windows": _same_window(fields, values, "sliding_window"), "experts": experts}


def _qwen3_moe(fields: Fields, values: Values) -> Values:
    layers = values["num_layers"]
    dense = fields.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise fields.bad("mlp_only_layers", "a list of layer numbers")
    step = fields.size("decoder_sparse_step", 1)
    experts = Experts(
        count=fields.size("num_experts", fields.size("num_local_experts", 128, MAX_EXPERTS), MAX_EXPERTS),
        per_token=fields.size("num_experts_per_tok", 8),
        ffn_size=fields.size("moe_intermediate_size", 768),
        normalised=fields.flag("norm_topk_prob", False),
        layers=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers)),
    )
    windows = (None,) * layers
    if fields.flag("use_sliding_window", False):
        windows = _same_window(fields, values, "sliding_window")
    common = {**_one_rope(fields, values), **_attention_bias(fields), "qk_norm": True, "windows": windows}
    return common | ({"experts": experts} if any(experts.layers) else {})


# --- what several families share ---


def _one_rope(fields: Fields, values: Values) -> Values:
    for holder in (fields, Fields(fields.get("rope_scaling") or fields.get("rope_parameters") or {}, fields.where)):
        if isinstance(holder.values, Mapping):
            holder.refuse_unless_neutral({"partial_rotary_factor": (1.0,)})
    return {"rope": read_rope(fields, values["head_dim"], values["max_position"])}


def _partial_rope(fields: Fields, values: Values, usual: float) -> Values:
    rotary = read_rotary_dim(fields, values["head_dim"], usual)
    return {"rope": read_rope(fields, rotary, values["max_position"]), "rotary_dim": rotary}


def _attention_bias(fields: Fields) -> Values:
    bias = fields.flag("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias}


def _same_window(fields: Fields, values: Values, key: str) -> tuple[int | None, ...]:
    window = fields.size(key) if fields.get(key) is not None else None
    return (window,) * int(values["num_layers"])


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


def _rotating_layers(fields: Fields, layers: int) -> list[bool]:
    """SmolLM3's no_rope_layers has a 1 for each layer that does rotate."""
    given = fields.get("no_rope_layers")
    if given is None:
        interval = fields.size("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(layers)]
    if not isinstance(given, list) or len(given) < layers or not all(flag in (0, 1) for flag in given):
        raise fields.bad("no_rope_layers", f"a list of {layers} zeros and ones")
    return [bool(flag) for flag in given[:layers]]


_GEMMA_HANDLES = frozenset({"hidden_act", "query_pre_attn_scalar", "final_logit_softcapping"})
_GEMMA_SIZES = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True}
_EXPERTS = frozenset({"num_experts", "num_local_experts"})
_GLM = {"rms_norm_eps": 1.5625e-7, "head_dim": 128, "num_key_value_heads": 2}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(read=_llama),
    "mistral": Family(read=_mistral, defaults={"sliding_window": 4096}),
    "qwen2": Family(read=_qwen2),
    "qwen3": Family(read=_qwen3, defaults={"head_dim": 128}),
    "smollm3": Family(
        read=_smollm3,
        defaults={"num_key_value_heads": 4, "rope_theta": 2_000_000.0, "tie_word_embeddings": True},
        handles=frozenset({"no_rope_layers"}),
    ),
    "gemma2": Family(
        read=_gemma2,
        defaults={
            **_GEMMA_SIZES,
            "sliding_window": 4096,
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        handles=_GEMMA_HANDLES | {"attn_logit_softcapping"},
    ),
    "gemma3": Family(
        read=_gemma3,
        defaults={
            **_GEMMA_SIZES,
            "vocab_size": 262_208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "sliding_window": 4096,
            "max_position_embeddings": 131_072,
        },
        handles=_GEMMA_HANDLES,
    ),
    "phi3": Family(
        read=_phi3,
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        handles=frozenset({"partial_rotary_factor"}),
    ),
    "glm": Family(read=_glm, defaults=_GLM, handles=frozenset({"partial_rotary_factor"})),
    "glm4": Family(read=_glm4, defaults=_GLM, handles=frozenset({"partial_rotary_factor"})),
    "mixtral": Family(
        read=_mixtral,
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "num_key_value_heads": 8},
        handles=_EXPERTS,
    ),
    "qwen3_moe": Family(read=_qwen3_moe, defaults={"num_key_value_heads": 4, "sliding_window": 4096}, handles=_EXPERTS),
}
