"""Fields of `DecoderConfig` from the metadata of a GGUF header. Keys as in the GGUF specification of ggml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgewise.core.errors import UnsupportedModel
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.models.decoder.fields import Fields
from edgewise.models.decoder.hf_fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS
from edgewise.models.decoder.hf_rope import yarn_scale

ARCHITECTURES = ("llama", "qwen2", "qwen3")
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
}

Shapes = Mapping[str, Sequence[int]]


def parse(metadata: Mapping[str, Any], tensors: Shapes | None, name: str) -> dict[str, Any]:
    fields = Fields(metadata, name)
    family = fields.get("general.architecture")
    if family not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(f"{name}: the architecture is {family!r}; this build supports {supported}.")
    fields.refuse_unless_neutral({f"{family}.{key}": values for key, values in _NEUTRAL.items()})
    layers = fields.size(f"{family}.block_count", most=MAX_LAYERS)
    heads = _heads(fields, f"{family}.attention.head_count", None)
    hidden = fields.size(f"{family}.embedding_length")
    max_position = fields.size(f"{family}.context_length")
    head_dim = _head_dim(fields, family, max(1, hidden // heads))
    return {
        "architecture": family,
        "vocab_size": _vocab_size(fields, family, tensors),
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": _heads(fields, f"{family}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rotary_dim": head_dim,
        "ffn_size": fields.size(f"{family}.feed_forward_length"),
        "rms_eps": fields.positive(f"{family}.attention.layer_norm_rms_epsilon"),
        "rope": _rope(fields, family, max_position),
        "windows": (None,) * layers,
        "qk_norm": family == "qwen3",
        "qkv_bias": _has(tensors, "blk.0.attn_q.bias", family == "qwen2"),
        "output_bias": _has(tensors, "blk.0.attn_output.bias", False),
        "mlp_bias": _has(tensors, "blk.0.ffn_gate.bias", False),
        "tied_embeddings": not _has(tensors, "output.weight", False),
        "max_position": max_position,
        "attention_scale": head_dim**-0.5,
    }


def _has(tensors: Shapes | None, name: str, usual: bool) -> bool:
    return usual if tensors is None else name in tensors


def _heads(fields: Fields, key: str, default: int | None) -> int:
    """A number, or an array with one entry per layer, which must all be equal."""
    value = fields.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return fields.size(key, default, MAX_HEADS)
    if len(set(value)) != 1:
        raise fields.unsupported(key, "the same number of heads in every layer")
    return Fields({key: value[0]}, fields.where).size(key, most=MAX_HEADS)


def _head_dim(fields: Fields, family: str, default: int) -> int:
    head_dim = fields.size(f"{family}.attention.key_length", default, MAX_HEAD_DIM)
    for key in (f"{family}.attention.value_length", f"{family}.rope.dimension_count"):
        if fields.size(key, head_dim) != head_dim:
            raise fields.unsupported(key, f"the size of the key heads, {head_dim}")
    return head_dim


def _vocab_size(fields: Fields, family: str, tensors: Shapes | None) -> int:
    if tensors and "token_embd.weight" in tensors:
        return int(tensors["token_embd.weight"][0])
    tokens = fields.get("tokenizer.ggml.tokens", ())
    return fields.size(f"{family}.vocab_size", len(tokens) or None)


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
