"""What a GGUF header says, or leaves unsaid, of each family beyond the plain case.

Where llama.cpp's loader has a constant in its code instead of a key (which layers have windows or do not rotate, how attention
is scaled, whether routing weights sum to 1), so has this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.models.decoder.experts import Experts
from edgewise.models.decoder.fields import Fields
from edgewise.models.decoder.hf_families import MAX_EXPERTS
from edgewise.models.decoder.hf_rope import longrope_scale

# Tensors that divide the angles of rotary embeddings.
ROPE_DIVISORS = "rope_freqs.weight"
SHORT_DIVISORS = "rope_factors_short.weight"
LONG_DIVISORS = "rope_factors_long.weight"

Shapes = Mapping[str, Sequence[int]]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Access to an architecture's keys without its prefix; `tensors` by name where they are known."""

    fields: Fields
    arch: str
    tensors: Shapes | None

    def name(self, key: str) -> str:
        return f"{self.arch}.{key}"

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(self.name(key), default)

    def size(self, key: str, default: int | None = None, most: int | None = None) -> int:
        limit = {} if most is None else {"most": most}
        return self.fields.size(self.name(key), default, **limit)

    def positive(self, key: str, default: float | None = None) -> float:
        return self.fields.positive(self.name(key), default)

    def has(self, tensor: str, usual: bool) -> bool:
        """Whether the file has a tensor; `usual` where its tensors are not known."""
        return usual if self.tensors is None else tensor in self.tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFFamily:
    """How to read an architecture.

    Attributes:
        family: Of `DecoderConfig.architecture`.
        read: From keys and plain values to those that replace them.
        handles: Keys that `read` understands and that are refused elsewhere.
        partial: Whether a share of each head may rotate.
    """

    family: str
    read: Callable[[Keys, Values], Values] = lambda _keys, _values: {}
    handles: frozenset[str] = frozenset()
    partial: bool = False


def _llama(keys: Keys, values: Values) -> Values:
    if not keys.get("expert_count", 0):
        return {}
    return {"architecture": "mixtral", "experts": _experts(keys, values, values["ffn_size"])}


def _qwen3_moe(keys: Keys, values: Values) -> Values:
    return {"qk_norm": True, "experts": _experts(keys, values, keys.size("expert_feed_forward_length"))}


def _experts(keys: Keys, values: Values, ffn_size: int) -> Experts:
    return Experts(
        count=keys.size("expert_count", most=MAX_EXPERTS),
        per_token=keys.size("expert_used_count"),
        ffn_size=ffn_size,
        normalised=keys.fields.flag(keys.name("expert_weights_norm"), True),
        layers=(True,) * values["num_layers"],
    )


def _smollm3(_keys: Keys, values: Values) -> Values:
    return {"unrotated": frozenset(layer for layer in range(values["num_layers"]) if (layer + 1) % 4 == 0)}


def _gemma2(keys: Keys, values: Values) -> Values:
    return {
        **_gemma(keys, values, widest=46),
        "windows": _windows(keys, values, pattern=2, usual=4096),
        "attention_softcap": _cap(keys, "attn_logit_softcapping", 50.0),
        "logit_softcap": _cap(keys, "final_logit_softcapping", 30.0),
    }


def _gemma3(keys: Keys, values: Values) -> Values:
    return {
        **_gemma(keys, values, widest=62),
        "windows": _windows(keys, values, pattern=6, usual=None),
        "local_rope": RopeParameters(theta=keys.positive("rope.freq_base_swa", 10_000.0)),
        "logit_softcap": _cap(keys, "final_logit_softcapping", None),
        "qk_norm": True,
    }


def _gemma(keys: Keys, values: Values, widest: int) -> Values:
    """`widest`: layers of the 27B model, which scales attention by the width of a head's share of the hidden size."""
    hidden, heads, layers = values["hidden_size"], values["num_heads"], values["num_layers"]
    share = hidden // heads if layers == widest else values["head_dim"]
    return {
        "activation": "gelu_tanh",
        "post_norms": True,
        "embedding_scale": hidden**0.5,
        "attention_scale": keys.positive("attention.scale", share**-0.5),
    }


def _cap(keys: Keys, key: str, usual: float | None) -> float | None:
    value = keys.get(key, usual)
    return None if value in (None, 0.0) else keys.positive(key, usual)


def _windows(keys: Keys, values: Values, pattern: int, usual: int | None) -> tuple[int | None, ...]:
    """All layers but every `pattern`-th have the window."""
    key, layers = "attention.sliding_window", values["num_layers"]
    window = keys.size(key, usual) if keys.get(key, usual) else None
    given = keys.get("attention.sliding_window_pattern")
    if isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != layers:
            raise keys.fields.bad(
                keys.name("attention.sliding_window_pattern"), f"one entry for each of {layers} layers"
            )
        return tuple(window if near else None for near in given)
    every = keys.size("attention.sliding_window_pattern", pattern)
    return tuple(window if (layer + 1) % every else None for layer in range(layers))


def _phi3(keys: Keys, values: Values) -> Values:
    window = keys.size("attention.sliding_window") if keys.get("attention.sliding_window", 0) else None
    windows = (window,) * values["num_layers"]
    if not keys.has(LONG_DIVISORS, False):
        return {"windows": windows}
    original, context = keys.size("rope.scaling.original_context_length"), values["max_position"]
    rope = RopeParameters(
        kind="longrope",
        theta=values["rope"].theta,
        factor=context / original,
        original_max_position=original,
        attention_factor=keys.positive("rope.scaling.attn_factor", longrope_scale(context / original, original)),
        served_context=context,
    )
    return {"windows": windows, "rope": rope}


def _glm(keys: Keys, _values: Values) -> Values:
    return {"qkv_bias": keys.has("blk.0.attn_q.bias", True) or keys.has("blk.0.attn_qkv.bias", True)}


def _glm4(keys: Keys, values: Values) -> Values:
    return {**_glm(keys, values), "post_norms": True}


_GEMMA = frozenset({"attention.sliding_window", "attention.scale", "final_logit_softcapping"})
_EXPERTS = frozenset({"expert_count"})

GGUF_FAMILIES: Mapping[str, GGUFFamily] = {
    "llama": GGUFFamily(family="llama", read=_llama, handles=_EXPERTS),
    "qwen2": GGUFFamily(family="qwen2"),
    "qwen3": GGUFFamily(family="qwen3", read=lambda _keys, _values: {"qk_norm": True}),
    "smollm3": GGUFFamily(family="smollm3", read=_smollm3),
    "gemma2": GGUFFamily(family="gemma2", read=_gemma2, handles=_GEMMA | {"attn_logit_softcapping"}),
    "gemma3": GGUFFamily(family="gemma3", read=_gemma3, handles=_GEMMA),
    "phi3": GGUFFamily(family="phi3", read=_phi3, handles=frozenset({"attention.sliding_window"}), partial=True),
    "chatglm": GGUFFamily(family="glm", read=_glm, partial=True),
    "glm4": GGUFFamily(family="glm4", read=_glm4, partial=True),
    "qwen3moe": GGUFFamily(family="qwen3_moe", read=_qwen3_moe, handles=_EXPERTS),
}
