"""Matrices of GGUF files whose blocks a card multiplies as they are: taken over without rounding them a second time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.triton.decode_product import Weight
from edgewise.kernels.triton.weights import from_blocks
from edgewise.models.decoder.layout import Target
from edgewise.models.decoder.loading import copy_halves
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.weights.reader import RawReader, WeightReader

_TAKEN = {"int8": ("Q8_0",), "int4": ("Q4_0", "Q4_1")}


def stored_matrix(
    matrix: torch.Tensor,
    wanted: Sequence[Target],
    reader: WeightReader,
    quantize: Quantize,
    device: torch.device,
    bias: torch.Tensor | None = None,
) -> Weight | None:
    """A matrix from the blocks of the file, or None where it is stored otherwise.

    Args:
        matrix: The decoder's, of which `wanted` are views; it may be on the meta device.
        wanted: Targets, among them all parts of the matrix.
        bias: Passed on.

    Raises:
        BadModelFile: As `RawReader.read_raw`.
    """
    parts = [target for target in wanted if target.out is matrix or target.out._base is matrix]
    parts.sort(key=lambda target: target.out.storage_offset())
    kinds = [reader.tensors[part.name].type for part in parts]
    if not parts or not isinstance(reader, RawReader) or not set(kinds) <= set(_TAKEN.get(quantize, ())):
        return None
    own = [from_blocks(_rows(part, reader).to(device), kind) for part, kind in zip(parts, kinds, strict=True)]
    scales = [part.scale for part in own if part.scale is not None]
    minima = [part.minimum for part in own if part.minimum is not None]
    return Weight(
        torch.cat([part.codes for part in own]), torch.cat(scales), torch.cat(minima) if minima else None, bias
    )


def _rows(part: Target, reader: RawReader) -> torch.Tensor:
    """[rows, bytes], heads in halves."""
    stored = torch.from_numpy(reader.read_raw(part.name, part.start[0], part.out.shape[0]))
    if part.pairs is None:
        return stored
    turned = torch.empty_like(stored)
    copy_halves(stored, turned, part.pairs)
    return turned
