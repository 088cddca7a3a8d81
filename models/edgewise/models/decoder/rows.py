"""What a decoding loop is given for each row of a batch. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRow:
    """One token to compute, and how the next one is drawn.

    Attributes:
        position: Of the token in its sequence. Rows of one sequence are at successive positions.
        pages: Of the sequence, enough for the position; the same object in all its rows.
        temperature, min_p: As of `kernels.sample.RowControls`.
        seed, place: Of the draw's random number (`kernels.philox.uniform`).
    """

    token: int
    position: int
    pages: Sequence[int]
    temperature: float = 0.0
    min_p: float = 0.0
    seed: int = 0
    place: int = 0
