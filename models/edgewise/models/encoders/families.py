"""What families of text encoders differ in: the words of their config.json, and the names of their tensors.

One network serves all (`graph`): what a family calls its parts is brought to the names of BERT's files here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edgewise.core.errors import BadModelFile, UnsupportedModel

Config = Mapping[str, Any]
Sizes = dict[str, Any]
"""Fields of `shape.EncoderShape`, and `places`: the longest input."""

GELU, SILU = "gelu", "silu"
LAYER: Final = "encoder.layer."
"""What stands before the names of a layer in BERT's files, and its number behind it."""
_MPNET_PADDING: Final = 1
_DISTILBERT_EPS: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies in a file: its name, and which of `parts` equal groups of its rows, where several lie in one."""

    name: str
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How files call the parts of an encoder.

    Attributes:
        layer: What stands before the names of layer `{}`.
        names: Of parts, by what BERT's files call them; those that are missing are called as there.
        prefixes: What may stand before all names, where the encoder is part of a larger model.
    """

    layer: str = "encoder.layer.{}."
    names: Mapping[str, Stored] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ("",)

    def place(self, part: str, prefix: str) -> Stored:
        """Where a file has what BERT's files call `part`."""
        number, _, inner = part.removeprefix(LAYER).partition(".") if part.startswith(LAYER) else ("", "", part)
        there = self.names.get(inner, Stored(inner))
        at = self.layer.format(number) if number else ""
        return Stored(prefix + at + there.name, there.part, there.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Attributes:
    sizes: From config.json; refuses by name what is not supported.
    namings: That files of the family have.
    head: Of a cross-encoder, its parts by `head.dense`, `head.norm` and `head.out`; empty where there is none.
    """

    sizes: Callable[[Config], Sizes]
    namings: tuple[Naming, ...]
    head: Mapping[str, str] = field(default_factory=dict)


def count(raw: Config, key: str, default: int | None = None) -> int:
    """A number that counts something. Raises `BadModelFile`."""
    value = raw.get(key, default)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise BadModelFile(f"config.json: {key} is {value!r}, which is no count.")
    return value


def _number(raw: Config, key: str, default: float) -> float:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise BadModelFile(f"config.json: {key} is {value!r}, which is no positive number.")
    return float(value)


def _only(raw: Config, wanted: Mapping[str, Any]) -> None:
    """Fields that are there must have these values."""
    for key, value in wanted.items():
        if raw.get(key, value) != value:
            raise UnsupportedModel(f"config.json: {key} {raw[key]!r} is not supported (only {value!r} is).")


def _usual(raw: Config) -> Sizes:
    """As most configurations call them."""
    return {
        "vocab": count(raw, "vocab_size"),
        "width": count(raw, "hidden_size"),
        "layers": count(raw, "num_hidden_layers"),
        "heads": count(raw, "num_attention_heads"),
        "hidden": count(raw, "intermediate_size"),
        "eps": _number(raw, "layer_norm_eps", 1e-12),
        "places": count(raw, "max_position_embeddings"),
    }


def _bert(raw: Config) -> Sizes:
    _only(raw, {"hidden_act": GELU, "position_embedding_type": "absolute"})
    return {**_usual(raw), "segments": count(raw, "type_vocab_size", 2)}


def _roberta(raw: Config) -> Sizes:
    """The first rows of the table of positions are left out: a position counts from behind the padding's id."""
    found = _bert(raw)
    first = count(raw, "pad_token_id", 1) + 1
    return {**found, "first_place": first, "places": found["places"] - first}


def _mpnet(raw: Config) -> Sizes:
    _only(raw, {"hidden_act": GELU})
    found = _usual(raw)
    first = _MPNET_PADDING + 1
    buckets = count(raw, "relative_attention_num_buckets", 32)
    return {**found, "first_place": first, "places": found["places"] - first, "buckets": buckets}


def _distilbert(raw: Config) -> Sizes:
    _only(raw, {"activation": GELU})
    return {
        "vocab": count(raw, "vocab_size"),
        "width": count(raw, "dim"),
        "layers": count(raw, "n_layers"),
        "heads": count(raw, "n_heads"),
        "hidden": count(raw, "hidden_dim"),
        "eps": _DISTILBERT_EPS,
        "places": count(raw, "max_position_embeddings"),
    }


def _modernbert(raw: Config) -> Sizes:
    """Warner et al. 2024. Every third layer sees all tokens, the others those near by, each kind with an angle of its own."""
    wanted = {"hidden_activation": GELU, "attention_bias": False, "mlp_bias": False, "norm_bias": False}
    _only(raw, {**wanted, "classifier_bias": False})
    layers = count(raw, "num_hidden_layers")
    every = count(raw, "global_attn_every_n_layers", 3)
    kinds = raw.get("layer_types") or [
        "sliding_attention" if every and at % every else "full_attention" for at in range(layers)
    ]
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise UnsupportedModel("config.json: layer_types must name full_attention or sliding_attention for each layer.")
    rope = {
        "full_attention": _theta(raw, "full_attention", _number(raw, "global_rope_theta", 160_000.0)),
        "sliding_attention": _theta(raw, "sliding_attention", _number(raw, "local_rope_theta", 10_000.0)),
    }
    near = count(raw, "local_attention", 128) // 2
    return {
        **_usual({**raw, "layer_norm_eps": raw.get("norm_eps", 1e-5)}),
        "norm_first": True,
        "gated": True,
        "thetas": tuple(rope[kind] for kind in kinds),
        "windows": tuple(near if kind == "sliding_attention" else 0 for kind in kinds),
        "unbiased": (*_PRODUCTS, *_NORMS, "head.dense"),
    }


def _nomic(raw: Config) -> Sizes:
    """Nussbaum et al. 2024; their own configuration has GPT-2's words, the one of transformers BERT's."""
    if "n_embd" not in raw:
        _only(raw, {"hidden_act": SILU})
        found = {**_usual(raw), "segments": count(raw, "type_vocab_size", 2)}
        theta = _theta(raw, None, 1000.0)
    else:
        wanted = {"activation_function": "swiglu", "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False}
        more = {"mlp_fc2_bias": False, "use_rms_norm": False, "parallel_block": False, "rotary_emb_fraction": 1.0}
        rope = {"rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None}
        _only(raw, {**wanted, **more, **rope, "moe_every_n_layers": 0})
        trained = raw.get("max_trained_positions") or count(raw, "n_positions")
        width = count(raw, "n_embd")
        found = {
            "vocab": count(raw, "vocab_size"),
            "width": width,
            "layers": count(raw, "n_layer"),
            "heads": count(raw, "n_head"),
            "hidden": count(raw, "n_inner", 4 * width),
            "eps": _number(raw, "layer_norm_epsilon", 1e-12),
            "places": min(count({"n": trained}, "n"), count(raw, "n_positions")),
            "segments": count(raw, "type_vocab_size", 2),
        }
        theta = _number(raw, "rotary_emb_base", 10_000.0)
    thetas = (theta,) * found["layers"]
    return {**found, "gated": True, "activation": SILU, "thetas": thetas, "unbiased": _PRODUCTS}


def _gte(raw: Config) -> Sizes:
    """Zhang et al. 2024, as transformers has it."""
    _only(raw, {"hidden_act": GELU})
    found = {**_usual(raw), "segments": count(raw, "type_vocab_size", 1)}
    thetas = (_theta(raw, None, 160_000.0),) * found["layers"]
    return {**found, "gated": True, "thetas": thetas, "unbiased": ("intermediate.dense", "intermediate.gate")}


def _theta(raw: Config, kind: str | None, default: float) -> float:
    """Base of the angles of positions, in the newer or the older words of transformers."""
    if raw.get("rope_scaling") is not None:
        raise UnsupportedModel("config.json: rope_scaling is not supported for encoders.")
    given = raw.get("rope_parameters") or {}
    found = given.get(kind) or {} if kind is not None else given
    if found.get("rope_type", "default") != "default":
        raise UnsupportedModel(f"config.json: rope_type {found['rope_type']!r} is not supported for encoders.")
    return _number(found, "rope_theta", _number(raw, "rope_theta", default))


_QKV: Final = ("attention.self.query", "attention.self.key", "attention.self.value")
_PRODUCTS: Final = (*_QKV, "attention.output.dense", "intermediate.dense", "intermediate.gate", "output.dense")
_NORMS: Final = ("attention.output.LayerNorm", "output.LayerNorm", "embeddings.LayerNorm", "final.LayerNorm")


def _plain(names: Mapping[str, str]) -> dict[str, Stored]:
    return {ours: Stored(theirs) for ours, theirs in names.items()}


def _joined(name: str, ours: tuple[str, ...]) -> dict[str, Stored]:
    return {one: Stored(name, at, len(ours)) for at, one in enumerate(ours)}


_POOLER: Final = {"head.dense": "{prefix}pooler.dense", "head.out": "classifier"}
_ROBERTA_HEAD: Final = {"head.dense": "classifier.dense", "head.out": "classifier.out_proj"}
_LLAMA_LIKE: Final = Naming(
    layer="layers.{}.",
    names=_plain(
        {
            "attention.self.query": "self_attn.q_proj",
            "attention.self.key": "self_attn.k_proj",
            "attention.self.value": "self_attn.v_proj",
            "attention.output.dense": "self_attn.o_proj",
            "attention.output.LayerNorm": "post_attention_layernorm",
            "intermediate.dense": "mlp.gate_proj",
            "intermediate.gate": "mlp.up_proj",
            "output.dense": "mlp.down_proj",
            "output.LayerNorm": "post_mlp_layernorm",
        }
    ),
    prefixes=("", "nomic_bert.", "gte."),
)
_NOMIC_OWN: Final = Naming(
    layer="encoder.layers.{}.",
    names={
        **_joined("attn.Wqkv", _QKV),
        **_plain(
            {
                "attention.output.dense": "attn.out_proj",
                "attention.output.LayerNorm": "norm1",
                "intermediate.dense": "mlp.fc12",
                "intermediate.gate": "mlp.fc11",
                "output.dense": "mlp.fc2",
                "output.LayerNorm": "norm2",
                "embeddings.LayerNorm": "emb_ln",
            }
        ),
    },
    prefixes=("", "nomic_bert."),
)
_GTE_OWN: Final = Naming(
    names={
        **_joined("attention.qkv_proj", _QKV),
        **_joined("mlp.up_gate_proj", ("intermediate.gate", "intermediate.dense")),
        **_plain(
            {
                "attention.output.dense": "attention.o_proj",
                "attention.output.LayerNorm": "attn_ln",
                "output.dense": "mlp.down_proj",
                "output.LayerNorm": "mlp_ln",
            }
        ),
    },
    prefixes=("", "new.", "gte."),
)
_MODERNBERT: Final = Naming(
    layer="layers.{}.",
    names={
        **_joined("attn.Wqkv", _QKV),
        **_joined("mlp.Wi", ("intermediate.dense", "intermediate.gate")),
        **_plain(
            {
                "attention.output.dense": "attn.Wo",
                "attention.output.LayerNorm": "attn_norm",
                "output.dense": "mlp.Wo",
                "output.LayerNorm": "mlp_norm",
                "embeddings.word_embeddings": "embeddings.tok_embeddings",
                "embeddings.LayerNorm": "embeddings.norm",
                "final.LayerNorm": "final_norm",
            }
        ),
    },
    prefixes=("", "model."),
)
_DISTILBERT: Final = Naming(
    layer="transformer.layer.{}.",
    names=_plain(
        {
            "attention.self.query": "attention.q_lin",
            "attention.self.key": "attention.k_lin",
            "attention.self.value": "attention.v_lin",
            "attention.output.dense": "attention.out_lin",
            "attention.output.LayerNorm": "sa_layer_norm",
            "intermediate.dense": "ffn.lin1",
            "output.dense": "ffn.lin2",
            "output.LayerNorm": "output_layer_norm",
        }
    ),
    prefixes=("", "distilbert."),
)
_MPNET: Final = Naming(
    names=_plain(
        {
            "attention.self.query": "attention.attn.q",
            "attention.self.key": "attention.attn.k",
            "attention.self.value": "attention.attn.v",
            "attention.output.dense": "attention.attn.o",
            "attention.output.LayerNorm": "attention.LayerNorm",
        }
    ),
    prefixes=("", "mpnet."),
)
_BERT: Final = Naming(prefixes=("", "bert.", "roberta.", "xlm_roberta.", "model."))
_XLM_ROBERTA: Final = Family(sizes=_roberta, namings=(_BERT,), head=_ROBERTA_HEAD)

FAMILIES: Final[Mapping[str, Family]] = {
    "bert": Family(sizes=_bert, namings=(_BERT,), head=_POOLER),
    "roberta": _XLM_ROBERTA,
    "xlm-roberta": _XLM_ROBERTA,
    "distilbert": Family(
        sizes=_distilbert, namings=(_DISTILBERT,), head={"head.dense": "pre_classifier", "head.out": "classifier"}
    ),
    "mpnet": Family(sizes=_mpnet, namings=(_MPNET,), head=_ROBERTA_HEAD),
    "modernbert": Family(
        sizes=_modernbert,
        namings=(_MODERNBERT,),
        head={"head.dense": "head.dense", "head.norm": "head.norm", "head.out": "classifier"},
    ),
    "nomic_bert": Family(sizes=_nomic, namings=(_LLAMA_LIKE, _NOMIC_OWN)),
    "gte": Family(sizes=_gte, namings=(_LLAMA_LIKE, _GTE_OWN), head=_POOLER),
}
"""By `model_type`."""


def family_of(raw: Config) -> Family:
    """Raises `UnsupportedModel`, naming those that there are."""
    kind = raw.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise UnsupportedModel(f"encoders of type {kind!r} are not supported (there are: {', '.join(FAMILIES)}).")
    return family
