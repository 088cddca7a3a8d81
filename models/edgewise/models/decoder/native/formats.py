"""Which matrices a decoder has for the native kernels, how each is packed, and what that takes. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from edgewise.kernels.limits import round_up
from edgewise.kernels.native.formats import PANEL_ROWS, WeightFormat, packed_bytes
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.names import names_of

Quantize = Literal["none", "int8", "int4", "fp8"]
"""How matrices are held and multiplied; "fp8" on CUDA alone (`kernels.fp8_linear`)."""

FLOAT_FORMATS = {"float32": WeightFormat.FLOAT32, "bfloat16": WeightFormat.BFLOAT16}
FOUR_BITS = frozenset({"Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K"})
_EIGHT_BITS = frozenset({"Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"})
_IN_BYTES = {
    "Q8_0": WeightFormat.INT8,
    "Q4_0": WeightFormat.INT8,
    "Q5_0": WeightFormat.INT8,
    "Q4_1": WeightFormat.INT8_MIN,
    "Q5_1": WeightFormat.INT8_MIN,
    "Q4_K": WeightFormat.INT8_K,
    "Q5_K": WeightFormat.INT8_K,
    "Q6_K": WeightFormat.INT8_K16,
}
_IN_HALF_BYTES = {"Q4_0": WeightFormat.INT4_EVEN, "Q4_1": WeightFormat.INT4, "Q4_K": WeightFormat.INT4_K}
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

        sizes = {"q": queries, "k": keys, "v": keys}
        apart = tuple(plan(rows, hidden, part) for part, rows in sizes.items())
        if any(one.format is WeightFormat.INT8_ROTATED for one in apart):  # all or none: they share their input
            apart = tuple(MatrixPlan(one.rows, one.cols, WeightFormat.INT8_ROTATED) for one in apart)
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
    _require_integers(quantize)
    if quantize == "int8":
        return _eight_bits(kinds)
    if keeps_wide and not kinds <= FOUR_BITS:
        # what has to be rounded stands beside matrices of 4 bits with the same inputs, which are not rotated
        return _one_of(kinds, _IN_BYTES) or WeightFormat.INT8
    return _one_of(kinds, _IN_HALF_BYTES) or WeightFormat.INT4


def _table_format(stored: str | None, dtype: str, quantize: Quantize) -> WeightFormat:
    """Tables keep 8 bits, unless the file has 4: every answer passes the head, and a token's first state is its embedding."""
    if quantize == "none":
        return FLOAT_FORMATS[dtype]
    _require_integers(quantize)
    if quantize == "int4" and stored in FOUR_BITS:
        return _one_of({stored or ""}, _IN_HALF_BYTES) or WeightFormat.INT4
    return _eight_bits(set() if stored is None else {stored})


def _require_integers(quantize: Quantize) -> None:
    if quantize == "fp8":
        raise ValueError("the native kernels hold weights in floats, int8 and int4, not in fp8")


def _eight_bits(kinds: set[str]) -> WeightFormat:
    """Blocks that fit are taken over without loss; what has to be rounded is rotated first, which costs less of it."""
    return _one_of(kinds, _IN_BYTES) or WeightFormat.INT8_ROTATED


def _one_of(kinds: set[str], formats: Mapping[str, WeightFormat]) -> WeightFormat | None:
    """The format that takes blocks of all kinds without loss. Parts of several kinds that alternate go in as floats."""
    found = {formats.get(kind) for kind in kinds}
    if len(found) != 1:
        return None
    only = found.pop()
    return only if only is None or only.takes_floats or len(kinds) == 1 else None


def kept_as(stored: str, form: Literal["int8", "int4"]) -> WeightFormat | None:
    """The format of `form` bits that takes over a file's blocks without loss; None: they have to be rounded."""
    return (_IN_BYTES if form == "int8" else _IN_HALF_BYTES).get(stored)


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
