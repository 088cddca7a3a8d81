"""A decoder computed in float32 with what weights and activations are in 8 or 4 bits: how a format is judged on any machine.

Integer products of rounded numbers are exact, so what this computes differs from native kernels by the order of float
additions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import torch
from torch.overrides import TorchFunctionMode

from edgewise.core.errors import BadModelFile
from edgewise.kernels.native.formats import WeightFormat, bits_of
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.kernels.reference.fp8_linear import round_rows
from edgewise.kernels.reference.quantized_linear import rotate, round_activations, round_rest
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.layout import Target, targets
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.names import Names, names_of
from edgewise.models.decoder.native.formats import Quantize, kept_as, layer_plans, table_plans
from edgewise.models.decoder.parallel import ALONE
from edgewise.models.files import ModelFiles
from edgewise.models.weights import ggml_rounding
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.rounding import BadRow, round_int4, round_int8

RoundedFormat = Literal["int8", "int4", "fp8", "Q8_0", "Q4_0"]
"""Ours, and llama.cpp's two. Embedding and head have 8 bits in those of integers, as in llama.cpp's files of Q4_0, unless a file
for ours has 4 bits there; "fp8" (`kernels.fp8_linear`) leaves the embedding as it is."""

BITS: Final = {"int8": 8.5, "int4": 5.0, "Q8_0": 8.5, "Q4_0": 4.5}
"""Of a weight, scales counted; of fp8 that depends on the length of a row."""

_SLAB: Final = 1 << 22  # elements that are rounded to fp8 at a time
_OURS: Final[tuple[Literal["int8", "int4"], ...]] = ("int8", "int4")
_Rounding = Callable[[torch.Tensor], torch.Tensor]


class RoundedDecoder:
    """A decoder whose matrices are rounded in place, and whose products round what they multiply them with.

    Attributes:
        config: The decoder's.
        bits: Of a weight, the mean over all matrices.
    """

    def __init__(self, decoder: Decoder, files: ModelFiles, form: RoundedFormat) -> None:
        self.config = decoder.config
        if form == "fp8":
            self._decoder, self.bits = _in_fp8(decoder, files)
            self._mode = _RoundedInputs(_fp8_rows, ())
            return
        self._decoder = decoder
        ours = form in ("int8", "int4")
        self.bits, rotated = _round_matrices(decoder, files, form)
        self._mode = _RoundedInputs(_activations if ours else ggml_rounding.q8_0, rotated)

    def __repr__(self) -> str:
        return f"RoundedDecoder({self._decoder!r}, {self.bits:.2f} bits)"

    def forward(
        self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta, media: None = None
    ) -> torch.Tensor:
        """As `Decoder.forward`."""
        with self._mode:
            return self._decoder.forward(tokens, kv, meta, media)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `Decoder.logits`."""
        with self._mode:
            return self._decoder.logits(hidden)

    def prove_rows(self) -> bool:
        """As `Decoder.prove_rows`."""
        return self._decoder.prove_rows()


class _RoundedInputs(TorchFunctionMode):
    """Rounds the activations of every weight product, those of matrices that begin at `rotated` addresses while rotated."""

    def __init__(self, rounding: _Rounding, rotated: Collection[int]) -> None:
        super().__init__()
        self._rounding = rounding
        self._rotated = rotated

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, *rest = args
            turned = rest[0].data_ptr() in self._rotated
            args = (_rotated(x, self._rounding) if turned else self._rounding(x), *rest)
        return func(*args, **(kwargs or {}))


def _activations(x: torch.Tensor) -> torch.Tensor:
    """As the native kernels round them: 8 bits in groups of 32, and large groups twice."""
    codes, scales = round_activations(x)
    fine, steps = round_rest(x, codes, scales)
    return (codes * scales[..., None] + fine * steps[..., None]).flatten(1)[:, : x.shape[1]]


def _fp8_rows(x: torch.Tensor) -> torch.Tensor:
    codes, scale = round_rows(x)
    return codes.float() * scale[:, None]


def _in_fp8(decoder: Decoder, files: ModelFiles) -> tuple[Decoder, float]:
    """With matrices of products in fp8, each row by its own scale: layers in place, the head of a model with tied embeddings in a
    copy. Also the bits of a weight, mean over those matrices."""
    parameters = decoder.parameters
    head = parameters.head.clone() if parameters.head is parameters.embedding else parameters.head
    bits = elements = 0
    named = [("the head", head)]
    for index, layer in enumerate(parameters.layers):
        parts = ("qkv", "output", "gate_up", "down")
        named += [(f"'{part}' of layer {index}", getattr(layer, part)) for part in parts]
    for name, matrix in named:
        rows = matrix.view(-1, matrix.shape[-1])
        step = max(1, _SLAB // rows.shape[1])
        for first in range(0, rows.shape[0], step):
            rounded = _fp8_rows(rows[first : first + step])
            bad = rounded.isnan().any(1).nonzero()
            if len(bad):
                raise BadModelFile(f"{files.name}: {name} holds NaN or infinity in row {first + int(bad[0])}.")
            rows[first : first + step] = rounded
        bits += 8 * rows.numel() + 32 * rows.shape[0]
        elements += rows.numel()
    return Decoder(decoder.config, replace(parameters, head=head), decoder.ropes), bits / elements


def _rotated(values: torch.Tensor, rounding: _Rounding) -> torch.Tensor:
    """Rounded between a rotation of every group of 32 columns and its inverse."""
    return (rotate(rounding(rotate(values) / 4.0)) / 8.0)[:, : values.shape[1]]


@dataclass(frozen=True, slots=True)
class _Way:
    """Of a matrix: bits of a weight if its blocks are taken over without loss; None if it is rounded to `form`."""

    form: RoundedFormat
    kept: float | None
    turned: bool


@dataclass(slots=True)
class _Tally:
    bits: float = 0.0
    elements: int = 0
    rotated: set[int] = field(default_factory=set)


def _round_matrices(decoder: Decoder, files: ModelFiles, form: RoundedFormat) -> tuple[float, set[int]]:
    """Bits of a weight, and the addresses of matrices that are rotated."""
    config, tally = decoder.config, _Tally()
    with closing(open_weights(files)) as reader:
        names = names_of(config, files.format, list(reader.tensors))
        stored = {name: tensor.type for name, tensor in reader.tensors.items()}
        planned, router = dict(_planned(config, names, stored, form)), names.parts["router"]
        for target in targets(config, decoder.parameters, names, ALONE):
            if target.out.dim() < 2 or target.name.endswith(router):
                continue
            way = planned[target.name]
            if way.kept is None:
                try:
                    _round(target, way.form, way.turned)
                except BadRow as error:
                    raise BadModelFile(
                        f"{files.name}: the tensor '{target.name}' cannot be rounded: {error}."
                    ) from error
                if way.turned:
                    tally.rotated.add(target.out.data_ptr())
            tally.bits += (way.kept or BITS[way.form]) * target.out.numel()
            tally.elements += target.out.numel()
    return tally.bits / tally.elements, tally.rotated


def _planned(
    config: DecoderConfig, names: Names, stored: Mapping[str, str], form: RoundedFormat
) -> Iterator[tuple[str, _Way]]:
    """By matrix. Ours are what the native kernels' plans say, in which matrices of one product share a format.

    Args:
        stored: How the file stores its tensors, by name.
    """
    if form == "int8" or form == "int4":
        for matrices, packed in _products(config, names, form):
            kinds = {stored[name] for name in matrices}  # of several, rows alternate as floats
            kept = len(kinds) == 1 and packed in {kept_as(kind, bits) for kind in kinds for bits in _OURS}
            rounded: RoundedFormat = "int8" if packed.has_bytes else "int4"
            way = _Way(rounded, bits_of(packed) if kept else None, packed is WeightFormat.INT8_ROTATED)
            yield from ((name, way) for name in matrices)
        return
    for matrices, _ in _products(config, names, "int8"):
        for name in matrices:
            own: RoundedFormat = "Q8_0" if name in (names.parts["embedding"], names.head) else form
            yield name, _Way(own, BITS[own] if stored[name] == own else None, turned=False)


def _products(
    config: DecoderConfig, names: Names, quantize: Quantize
) -> Iterator[tuple[tuple[str, ...], WeightFormat]]:
    """Names of matrices whose rows are packed together, or alone, and their format; no routers, which stay floats."""
    parts = names.parts
    tables = table_plans(config, "float32", quantize)
    yield from (((name,), one.format) for name, one in zip((parts["embedding"], names.head), tables, strict=False))
    for index, plan in enumerate(layer_plans(config, "float32", quantize)):
        prefix = names.layer.format(index)
        q, k, v = (prefix + parts.get("qkv", parts[part]) + "weight" for part in "qkv")
        for name, one in zip((q, k, v), plan.qkv * (3 // len(plan.qkv)), strict=True):
            yield (name,), one.format
        yield (prefix + parts["output"] + "weight",), plan.output.format
        gate, up = (prefix + parts.get("gate_up", parts[part]) + "weight" for part in ("gate", "up"))
        feed = [(gate, up, prefix + parts["down"] + "weight")]
        if plan.router is not None:
            gate, up, down = (prefix + parts[f"expert_{part}"] for part in ("gate", "up", "down"))
            feed = [(gate.format(one), up.format(one), down.format(one)) for one in range(plan.experts)]
        for gate, up, down in feed:
            yield (gate, up), plan.gate_up.format
            yield (down,), plan.down.format


def _round(target: Target, form: RoundedFormat, turned: bool) -> None:
    matrices = target.out.reshape(-1, target.out.shape[-1])
    rounded = _rotated(matrices, _int8) if turned else _ROUNDINGS[form](matrices)
    target.out.copy_(rounded.reshape(target.out.shape))


def _int8(weight: torch.Tensor) -> torch.Tensor:
    return round_int8(weight).values()


def _int4(weight: torch.Tensor) -> torch.Tensor:
    return round_int4(weight).values()


_ROUNDINGS: Final[Mapping[RoundedFormat, _Rounding]] = {
    "int8": _int8,
    "int4": _int4,
    "Q8_0": ggml_rounding.q8_0,
    "Q4_0": ggml_rounding.q4_0,
}
