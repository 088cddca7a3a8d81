"""A decoder computed in float32 with what weights and activations are in 8 or 4 bits: how a format is judged on any machine.

Integer products of rounded numbers are exact, so what this computes differs from native kernels by the order of float
additions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch.overrides import TorchFunctionMode

from edgewise.core.errors import BadModelFile
from edgewise.kernels.native.formats import bits_of
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.kernels.reference.quantized_linear import rotate, round_activations, round_rest
from edgewise.models.decoder.layout import Target, targets
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.names import names_of
from edgewise.models.decoder.native.formats import FOUR_BITS, kept_as, stored_bits
from edgewise.models.decoder.parallel import ALONE
from edgewise.models.files import ModelFiles
from edgewise.models.weights import ggml_rounding
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.rounding import BadRow, round_int4, round_int8

RoundedFormat = Literal["int8", "int4", "Q8_0", "Q4_0"]
"""Ours, and llama.cpp's two. Embedding and head have 8 bits in all of them, as in llama.cpp's files of Q4_0, unless a file for
ours has 4 bits there."""

BITS: Final = {"int8": 8.5, "int4": 5.0, "Q8_0": 8.5, "Q4_0": 4.5}
"""Of a weight, scales counted."""

_Rounding = Callable[[torch.Tensor], torch.Tensor]


class RoundedDecoder:
    """A decoder whose matrices are rounded in place, and whose products round what they multiply them with.

    Attributes:
        config: The decoder's.
        bits: Of a weight, the mean over all matrices.
    """

    def __init__(self, decoder: Decoder, files: ModelFiles, form: RoundedFormat) -> None:
        self._decoder = decoder
        self.config = decoder.config
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


def _rotated(values: torch.Tensor, rounding: _Rounding) -> torch.Tensor:
    """Rounded between a rotation of every group of 32 columns and its inverse."""
    return (rotate(rounding(rotate(values) / 4.0)) / 8.0)[:, : values.shape[1]]


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
        tables, router = (names.parts["embedding"], names.head), names.parts["router"]
        for target in targets(config, decoder.parameters, names, ALONE):
            if target.out.dim() < 2 or target.name.endswith(router):
                continue
            stored = reader.tensors[target.name].type
            own = _form_of(stored, form, table=target.name in tables, keeps_wide=stored_bits(config)[0] == "int4")
            kept = _bits_kept(stored, own)
            if kept is None:
                turned = own == "int8" and (form == "int8" or target.name in tables)
                try:
                    _round(target, own, turned)
                except BadRow as error:
                    raise BadModelFile(
                        f"{files.name}: the tensor '{target.name}' cannot be rounded: {error}."
                    ) from error
                if turned:
                    tally.rotated.add(target.out.data_ptr())
            tally.bits += (kept or BITS[own]) * target.out.numel()
            tally.elements += target.out.numel()
    return tally.bits / tally.elements, tally.rotated


def _form_of(stored: str, form: RoundedFormat, *, table: bool, keeps_wide: bool) -> RoundedFormat:
    """As `models.decoder.native.formats` for our own forms."""
    if form == "Q4_0":
        return "Q8_0" if table else form
    if form == "int4" and stored not in FOUR_BITS and (table or keeps_wide):
        return "int8"
    return form


def _bits_kept(stored: str, form: RoundedFormat) -> float | None:
    """Of a weight whose blocks the format takes over without loss; None: they have to be rounded."""
    if form == "Q8_0" or form == "Q4_0":
        return BITS[form] if stored == form else None
    kept = kept_as(stored, form)
    return None if kept is None else bits_of(kept)


def _round(target: Target, form: RoundedFormat, turned: bool) -> None:
    matrices = target.out.reshape(-1, target.out.shape[-1])
    rounded = _rotated(matrices, _int8) if turned else _ROUNDINGS[form](matrices)
    target.out.copy_(rounded.reshape(target.out.shape))


def _int8(weight: torch.Tensor) -> torch.Tensor:
    return round_int8(weight).values()


def _int4(weight: torch.Tensor) -> torch.Tensor:
    return round_int4(weight).values()


_ROUNDINGS: Final[dict[RoundedFormat, _Rounding]] = {
    "int8": _int8,
    "int4": _int4,
    "Q8_0": ggml_rounding.q8_0,
    "Q4_0": ggml_rounding.q4_0,
}
