"""Which matrices a decoder has for the native kernels, how each is packed, and what that takes. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from edgewise.kernels.limits import round_up
from edgewise.kernels.native.formats import PANEL_ROWS, WeightFormat, packed_bytes
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.names import names_of

Quantize = Literal["none", "int8", "int4"]

FLOAT_FORMATS = {"float32": WeightFormat.FLOAT32, "bfloat16": WeightFormat.BFLOAT16}
FOUR_BITS = frozenset({"Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K"})
KEPT_AS_INT8 = frozenset({"Q8_0", "Q4_0"})
_EIGHT_BITS = frozenset({"Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"})
_PARTS = ("q", "k", "v", "output", "gate", "up", "down")
_EXPERT_PARTS = ("gate", "up", "down")
_FUSED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """A matrix as it is packed. `rows` counts padding that its place in the step needs."""

    rows: int
    cols: int
    format: WeightFormat

    @property
    def nbytes(self) -> int:
        return packed_bytes(self.rows, self.cols, self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """The matrices of a layer.

    Attributes:
        qkv: One, or three where the file stores them so that they take different formats.
        gate_up, down: Of the layer, or of each of its `experts`.
        router: In float32, since a token's way hangs on it; None in a layer without experts.
    """

    qkv: tuple[MatrixPlan, ...]
    output: MatrixPlan
    gate_up: MatrixPlan
    down: MatrixPlan
    experts: int = 1
    router: MatrixPlan | None = None

    @property
    def nbytes(self) -> int:
        feed = self.experts * (self.gate_up.nbytes + self.down.nbytes)
        return sum(one.nbytes for one in (*self.qkv, self.output)) + feed + (self.router.nbytes if self.router else 0)


def stored_bits(config: DecoderConfig) -> tuple[Quantize, str]:
    """How most of the layers' matrices are stored, and a sentence that says so."""
    found = Counter(kind for layer in range(config.num_layers) for kind in _layer_encodings(config, layer).values())
    if not found:
        return "none", "the file's matrices are floats"
    usual = found.most_common(1)[0][0]
    if usual in FOUR_BITS:
        return "int4", f"most of the file's matrices are {usual}"
    if usual in _EIGHT_BITS:
        return "int8", f"most of the file's matrices are {usual}"
    return "none", f"most of the file's matrices are {usual}"


def layer_plans(config: DecoderConfig, dtype: str, quantize: Quantize) -> Iterator[LayerPlan]:
    """One plan per layer. `dtype` is that of the matrices where nothing is quantized: float32 or bfloat16."""
    keeps_wide = stored_bits(config)[0] == "int4"
    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    for layer in range(config.num_layers):
        stored = _layer_encodings(config, layer)

        def plan(rows: int, cols: int, *parts: str, stored: dict[str, str] = stored) -> MatrixPlan:
            kinds = {stored[part] for part in parts if part in stored}
            return MatrixPlan(rows, cols, _format(kinds, dtype, quantize, keeps_wide=keeps_wide))

        # in 8 bits all three are rotated or none: they share their input
        sizes = {"q": queries, "k": keys, "v": keys}
        apart = tuple(plan(rows, hidden, *(sizes if quantize == "int8" else (part,))) for part, rows in sizes.items())
        together = len({one.format for one in apart}) == 1
        experts = config.experts_of(layer)
        ffn = config.ffn_size if experts is None else experts.ffn_size
        yield LayerPlan(
            qkv=(MatrixPlan(queries + 2 * keys, hidden, apart[0].format),) if together else apart,
            output=plan(hidden, queries, "output"),
            gate_up=plan(2 * round_up(ffn, PANEL_ROWS), hidden, "gate", "up"),
            down=plan(hidden, ffn, "down"),
            experts=1 if experts is None else experts.count,
            router=None if experts is None else MatrixPlan(experts.count, hidden, WeightFormat.FLOAT32),
        )


def table_plans(config: DecoderConfig, dtype: str, quantize: Quantize) -> tuple[MatrixPlan, ...]:
    """The embedding table, and the output head if it is another."""
    names = names_of(config, "gguf", config.encodings) if config.encodings else None
    stored = [None, None] if names is None else [names.parts["embedding"], names.head]
    return tuple(
        MatrixPlan(
            config.vocab_size, config.hidden_size, _table_format(config.encodings.get(name or ""), dtype, quantize)
        )
        for name in stored[: 1 if config.tied_embeddings else 2]
    )


def _format(kinds: set[str], dtype: str, quantize: Quantize, *, keeps_wide: bool) -> WeightFormat:
    """Of a matrix whose parts are stored as `kinds`, none if they are floats. In a file of 4 bits a matrix with more of them was
    given them for its weight in the result, and keeps them."""
    if quantize == "none":
        return FLOAT_FORMATS[dtype]
    if quantize == "int8":
        return _eight_bits(kinds)
    if keeps_wide and not kinds <= FOUR_BITS:
        return WeightFormat.INT8  # beside matrices of 4 bits with the same inputs, which are not rotated
    return WeightFormat.INT4_EVEN if kinds == {"Q4_0"} else WeightFormat.INT4


def _table_format(stored: str | None, dtype: str, quantize: Quantize) -> WeightFormat:
    """Tables keep 8 bits, unless the file has 4: every answer passes the head, and a token's first state is its embedding."""
    if quantize == "none":
        return FLOAT_FORMATS[dtype]
    if quantize == "int4" and stored in FOUR_BITS:
        return WeightFormat.INT4_EVEN if stored == "Q4_0" else WeightFormat.INT4
    return _eight_bits(set() if stored is None else {stored})


def _eight_bits(kinds: set[str]) -> WeightFormat:
    """Blocks that fit are taken over without loss; what has to be rounded is rotated first, which costs less of it."""
    return WeightFormat.INT8 if kinds and kinds <= KEPT_AS_INT8 else WeightFormat.INT8_ROTATED


def _layer_encodings(config: DecoderConfig, layer: int) -> dict[str, str]:
    """By part; empty where matrices are stored as plain floats."""
    if not config.encodings:
        return {}
    names = names_of(config, "gguf", config.encodings)
    found: dict[str, str] = {}
    experts = config.experts_of(layer) is not None
    for part in _PARTS:
        if experts and part in _EXPERT_PARTS:
            name = names.parts[f"expert_{part}"].format(0)
        else:
            name = (names.parts.get(_FUSED.get(part, part)) or names.parts[part]) + "weight"
        kind = config.encodings.get(names.layer.format(layer) + name)
        if kind is not None:
            found[part] = kind
    return found
