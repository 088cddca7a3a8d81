"""Matrices whose stored numbers a card multiplies as they are, taken over without rounding them a second time: blocks of GGUF
files, and fp8 with one scale for a row or a matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.triton.decode_product import Weight
from edgewise.kernels.triton.weights import from_blocks
from edgewise.models.decoder.layout import Target
from edgewise.models.decoder.loading import copy_halves
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.weights.reader import Fp8Reader, RawReader, WeightReader

_PIECE = 1 << 24  # elements in fp8 that are read at a time
_TAKEN = {"int8": ("Q8_0",), "int4": ("Q4_0", "Q4_1")}


def stored_matrix(
    matrix: torch.Tensor,
    wanted: Sequence[Target],
    reader: WeightReader,
    quantize: Quantize,
    device: torch.device,
    bias: torch.Tensor | None = None,
) -> Weight | None:
    """A matrix as the file has it, or None where it is stored otherwise.

    Args:
        matrix: The decoder's, of which `wanted` are views; it may be on the meta device. Experts' become one matrix.
        wanted: Targets, among them all parts of the matrix.
        bias: Passed on.

    Raises:
        BadModelFile: As `RawReader.read_raw` and `Fp8Reader.read_fp8`.
    """
    parts = [target for target in wanted if target.out is matrix or target.out._base is matrix]
    parts.sort(key=lambda target: target.out.storage_offset())
    if quantize == "fp8":
        return _stored_fp8(matrix, parts, reader, device, bias)
    kinds = [reader.tensors[part.name].type for part in parts]
    if not parts or not isinstance(reader, RawReader) or not set(kinds) <= set(_TAKEN.get(quantize, ())):
        return None
    own = [from_blocks(_rows(part, reader).to(device), kind) for part, kind in zip(parts, kinds, strict=True)]
    scales = [part.scale for part in own if part.scale is not None]
    minima = [part.minimum for part in own if part.minimum is not None]
    return Weight(
        torch.cat([part.codes for part in own]), torch.cat(scales), torch.cat(minima) if minima else None, bias
    )


def _stored_fp8(
    matrix: torch.Tensor, parts: Sequence[Target], reader: WeightReader, device: torch.device, bias: torch.Tensor | None
) -> Weight | None:
    """Read a piece after the other into what stays."""
    if (
        not parts
        or matrix.dim() != 2
        or not isinstance(reader, Fp8Reader)
        or any(part.pairs or part.offset for part in parts)
    ):
        return None
    if any(reader.read_fp8(part.name, part.start[0], 1) is None for part in parts):
        return None
    codes = torch.empty(matrix.shape, dtype=torch.uint8, device=device)
    scale = torch.empty(matrix.shape[0], device=device)
    step = max(1, _PIECE // matrix.shape[1])
    at = 0
    for part in parts:
        for first in range(0, part.out.shape[0], step):
            found = reader.read_fp8(part.name, part.start[0] + first, min(step, part.out.shape[0] - first))
            assert found is not None
            until = at + found[1].shape[0]
            codes[at:until].copy_(found[0].view(torch.uint8))
            scale[at:until].copy_(found[1])
            at = until
    return Weight(codes.view(torch.float8_e4m3fn), scale, None, bias)


def _rows(part: Target, reader: RawReader) -> torch.Tensor:
    """[rows, bytes], heads in halves; the rows of one expert where a tensor holds several."""
    if part.out.dim() == 3:
        return torch.from_numpy(reader.read_raw(part.name, part.start[0], 1)).view(part.out.shape[1], -1)
    stored = torch.from_numpy(reader.read_raw(part.name, part.start[0], part.out.shape[0]))
    if part.pairs is None:
        return stored
    turned = torch.empty_like(stored)
    copy_halves(stored, turned, part.pairs)
    return turned
