"""Rotary position embeddings of a Hugging Face config.json, in the form of transformers 4 and 5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from edgewise.core.errors import UnsupportedModel
from edgewise.kernels.rope_parameters import RopeKind, RopeParameters
from edgewise.models.decoder.fields import Fields

_ROPE_KEYS: Mapping[RopeKind, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset(),
    "llama3": frozenset({"low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset(
        {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"}
    ),
    "longrope": frozenset({"attention_factor", "short_factor", "long_factor"}),
}
_COMMON_ROPE_KEYS = frozenset(
    {
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "mrope_section",
        "mrope_interleaved",
    }
)
_THETA = 10_000.0


def read_rope(fields: Fields, rotary_dim: int, max_position: int) -> RopeParameters:
    """transformers 5 keeps everything in rope_parameters, 4 had rope_theta and rope_scaling."""
    rope = _object(fields, "rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    theta = rope.positive("rope_theta", fields.positive("rope_theta", _THETA))
    return _parse(fields, rope, theta, rotary_dim, max_position)


def read_two_ropes(fields: Fields, rotary_dim: int, max_position: int) -> tuple[RopeParameters, RopeParameters]:
    """Those of layers that see everything and of layers with a window (Gemma 3)."""
    both = _object(fields, "rope_parameters")
    kinds = {"full_attention", "sliding_attention"}
    for key in both.values.keys() - kinds:
        raise both.unsupported(key, "one object for full_attention and one for sliding_attention")
    wide = _object(
        fields if fields.get("rope_scaling") else both,
        "rope_scaling" if fields.get("rope_scaling") else "full_attention",
    )
    near = _object(both, "sliding_attention")
    wide_theta = wide.positive("rope_theta", fields.positive("rope_theta", 1_000_000.0))
    near_theta = near.positive("rope_theta", fields.positive("rope_local_base_freq", _THETA))
    return (
        _parse(fields, wide, wide_theta, rotary_dim, max_position),
        _parse(fields, near, near_theta, rotary_dim, max_position),
    )


def read_rotary_dim(fields: Fields, head_dim: int, usual: float) -> int:
    """Dimensions of a head that rotate, where only a share of them does; `usual` is the share if the file names none."""
    rope = _object(fields, "rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    holder = rope if rope.get("partial_rotary_factor") is not None else fields
    share = holder.positive("partial_rotary_factor", usual)
    rotary = int(head_dim * share)
    if share > 1 or rotary < 2 or rotary % 2:
        raise holder.bad("partial_rotary_factor", f"a share of the head size {head_dim} that is even")
    return rotary


def _object(fields: Fields, key: str) -> Fields:
    raw = fields.get(key) or {}
    if not isinstance(raw, dict):
        raise fields.bad(key, "an object")
    return Fields(raw, f"{fields.where}: '{key}'")


def _parse(fields: Fields, rope: Fields, theta: float, rotary_dim: int, max_position: int) -> RopeParameters:
    if rope.get("rope_type", rope.get("type")) == "mrope":  # how transformers 4 called sections of the plain angles
        rope = Fields({**rope.values, "rope_type": "default"}, rope.where)
    parameters = _one_dimension(fields, rope, theta, rotary_dim, max_position)
    if rope.get("mrope_section") is None:
        return parameters
    sections = rope.positives("mrope_section", 3)
    if sum(sections) != rotary_dim // 2 or not all(section.is_integer() for section in sections):
        raise rope.bad("mrope_section", f"three whole numbers that sum to {rotary_dim // 2}")
    interleaved = rope.flag("mrope_interleaved", False)
    return replace(parameters, sections=tuple(int(section) for section in sections), interleaved=interleaved)


def _one_dimension(fields: Fields, rope: Fields, theta: float, rotary_dim: int, max_position: int) -> RopeParameters:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_KEYS:
        raise UnsupportedModel(f"{rope.where}: the type {kind!r}; this build supports {', '.join(_ROPE_KEYS)}.")
    for unknown in rope.values.keys() - _COMMON_ROPE_KEYS - _ROPE_KEYS[kind]:
        if rope.values[unknown] is not None and kind != "default":
            raise rope.unsupported(unknown, f"models of type {kind} without it")
        if isinstance(rope.values[unknown], dict | list):  # a table per layer type
            raise rope.unsupported(unknown, "one table for all layers")
    if kind == "default":
        return RopeParameters(theta=theta)
    if kind == "linear":
        return RopeParameters(kind=kind, theta=theta, factor=rope.positive("factor"))
    holder = fields if fields.get("original_max_position_embeddings") else rope
    original = holder.size("original_max_position_embeddings", max_position)
    if kind == "llama3":
        return _llama3(rope, theta, original)
    if kind == "longrope":
        return _longrope(rope, theta, original, rotary_dim, max_position)
    return _yarn(rope, theta, original, max_position)


def _llama3(rope: Fields, theta: float, original: int) -> RopeParameters:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise rope.bad("low_freq_factor", f"below high_freq_factor ({high})")
    return RopeParameters(
        kind="llama3",
        theta=theta,
        factor=rope.positive("factor"),
        original_max_position=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(rope: Fields, theta: float, original: int, max_position: int) -> RopeParameters:
    factor = rope.positive("factor", max_position / original)
    return RopeParameters(
        kind="yarn",
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


def _longrope(rope: Fields, theta: float, original: int, rotary_dim: int, max_position: int) -> RopeParameters:
    factor = rope.positive("factor", max_position / original)
    return RopeParameters(
        kind="longrope",
        theta=theta,
        factor=factor,
        original_max_position=original,
        attention_factor=rope.positive("attention_factor", longrope_scale(factor, original)),
        short_divisors=rope.positives("short_factor", rotary_dim // 2),
        long_divisors=rope.positives("long_factor", rotary_dim // 2),
        served_context=max_position,
    )


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """How much longer contexts sharpen attention: 0.1 ln(factor) + 1 (Peng et al. 2023, YaRN, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def longrope_scale(factor: float, original: int) -> float:
    """The same for LongRoPE: sqrt(1 + ln(factor) / ln(original context))."""
    return 1.0 if factor <= 1 or original <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
