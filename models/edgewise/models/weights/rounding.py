"""Rounding matrices to 8 and 4 bits in groups of 32 columns, which GGUF stores as Q8_0 and Q4_1.

Codes are taken against the scale as it is stored, in float16. Of 4 bits a search picks scale and minimum: from several
ranges, each made better by least squares on its own codes (as `make_qkx2_quants` of ggml does), the one with the least error
is kept. With `importance`, the mean square of what each column is multiplied with, that error is the one of products: for
small models it decides most of the quality.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses

GROUP: Final = 32
RANGES: Final = (0.0, -0.02, 0.04, 0.08)
"""Shares of a group's range that are cut off at both ends to begin a search with; the first alone is the plain way."""

_ROWS_AT_ONCE: Final = 1 << 15  # groups of a piece: 4 MiB a tensor
_REFITS: Final = 2
_TOP: Final = 15.0
_TINY: Final = 6e-8  # smallest positive float16: no scale is rounded to zero


LARGEST_HALF: Final = 65504.0


class BadRow(ValueError):
    """A row holds NaN, infinity or a value too large for the format."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} holds NaN, infinity or a value too large for the format")
        self.row = row


def require_within(weight: torch.Tensor, largest: float) -> None:
    """Check [rows, ...] values.

    Raises:
        BadRow: One is not a number from -largest to largest.
    """
    good = (weight.abs() <= largest).reshape(len(weight), -1).all(-1)  # NaN compares false
    if not bool(good.all()):
        raise BadRow(int(good.logical_not().nonzero()[0]))


@dataclass(frozen=True, slots=True)
class Rounded:
    """Groups of a matrix [rows, cols], its columns padded with zeros to whole groups.

    Attributes:
        codes: [groups, 32] uint8 from 0 to 15, or int8 from -127 to 127.
        scale: [groups, 1] float16.
        minimum: [groups, 1] float16; None with 8 bits.
        shape: (rows, cols).
    """

    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None
    shape: tuple[int, int]

    def values(self) -> torch.Tensor:
        """[rows, cols] float32: code * scale (+ minimum)."""
        values = self.codes.float() * self.scale.float()
        if self.minimum is not None:
            values += self.minimum.float()
        rows, cols = self.shape
        return values.reshape(rows, -1)[:, :cols]

    def blocks(self) -> bytes:
        """As GGUF stores it: Q4_1 with 4 bits, Q8_0 with 8 bits. Columns must be a multiple of 32."""
        if self.shape[1] % GROUP:
            raise ValueError(f"GGUF blocks need a multiple of {GROUP} columns, got {self.shape[1]}")
        parts = [self.scale.view(torch.uint8)]
        if self.minimum is None:
            parts.append(self.codes.view(torch.uint8))
        else:
            parts += [self.minimum.view(torch.uint8), self.codes[:, : GROUP // 2] | (self.codes[:, GROUP // 2 :] << 4)]
        return bytes(torch.cat(parts, dim=1).numpy())


def round_int8(weight: torch.Tensor) -> Rounded:
    """Round [rows, cols] float32 to 8 bits; scale = max |w| / 127 of a group.

    Raises:
        BadRow: A value is not finite, or too large for a scale in float16.
    """
    require_within(weight, 127.0 * LARGEST_HALF)
    groups = _groups(weight)
    scale = _half(groups.abs().amax(-1, keepdim=True) / 127.0)
    codes = torch.round(groups / scale.float()).clamp_(-127, 127).to(torch.int8)
    return Rounded(codes, scale, None, (weight.shape[0], weight.shape[1]))


def round_int4(
    weight: torch.Tensor, importance: torch.Tensor | None = None, ranges: tuple[float, ...] = RANGES
) -> Rounded:
    """Round [rows, cols] float32 to 4 bits with scale and minimum.

    Args:
        importance: [cols], what a column's squared error counts; None for all alike.
        ranges: Where the search begins.

    Raises:
        BadRow: A value is not finite, or too large for a minimum in float16.
    """
    require_within(weight, LARGEST_HALF)
    groups = _groups(weight)
    rows = weight.shape[0]
    counts = torch.ones(groups.shape[0] // rows, GROUP) if importance is None else _groups(importance[None])
    scale, minimum = torch.empty(groups.shape[0], 1), torch.empty(groups.shape[0], 1)
    step = max(1, _ROWS_AT_ONCE // len(counts)) * len(counts)
    for first in range(0, len(groups), step):
        part = groups[first : first + step]
        each = counts.repeat(len(part) // len(counts), 1)
        scale[first : first + step], minimum[first : first + step] = search_int4(part, each, ranges)
    codes = codes_int4(groups, scale, minimum).to(torch.uint8)
    return Rounded(codes, scale.half(), minimum.half(), (rows, weight.shape[1]))


def search_int4(
    groups: torch.Tensor, importance: torch.Tensor, ranges: tuple[float, ...] = RANGES
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum [n, 1], float32 numbers that float16 holds, for groups [n, 32] with `importance` [n, 32]."""
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    importance = (
        importance + importance.mean(-1, keepdim=True) * 1e-6 + 1e-30
    )  # a group of no importance is rounded too
    best = torch.full_like(low, torch.inf)
    found = torch.zeros_like(low), torch.zeros_like(low)
    for cut in ranges:
        minimum = low + cut * (high - low)
        scale = (high - cut * (high - low) - minimum) / _TOP
        for refit in range(_REFITS + 1):
            scale, minimum = _half(scale).float(), minimum.half().float()
            codes = codes_int4(groups, scale, minimum)
            error = ((codes * scale + minimum - groups).square_() * importance).sum(-1, keepdim=True)
            better = error < best
            best = torch.where(better, error, best)
            found = torch.where(better, scale, found[0]), torch.where(better, minimum, found[1])
            if refit < _REFITS:
                scale, minimum = _least_squares(groups, codes, importance, scale, minimum)
    return found


def codes_int4(groups: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """Nearest codes, as floats."""
    return torch.round((groups - minimum) / scale).clamp_(0, _TOP)


def _least_squares(
    groups: torch.Tensor, codes: torch.Tensor, importance: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum with the least weighted error for given codes; those given where all codes of a group are equal."""
    total = importance.sum(-1, keepdim=True)
    mean_code = (importance * codes).sum(-1, keepdim=True) / total
    mean = (importance * groups).sum(-1, keepdim=True) / total
    centred = (codes - mean_code) * importance
    spread = (centred * (codes - mean_code)).sum(-1, keepdim=True)
    known = spread > total * 1e-6
    fitted = torch.where(known, (centred * (groups - mean)).sum(-1, keepdim=True) / spread.clamp_min(1e-38), scale)
    known &= fitted > 0
    return torch.where(known, fitted, scale), torch.where(known, mean - fitted * mean_code, minimum)


def _half(scale: torch.Tensor) -> torch.Tensor:
    return scale.clamp(_TINY, LARGEST_HALF).half()


def _groups(weight: torch.Tensor) -> torch.Tensor:
    return F.pad(weight.float(), (0, -weight.shape[1] % GROUP)).reshape(-1, GROUP)
