"""What a family of voices brings; `speech.speaker` does the rest the same way for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Voice(Protocol):
    """A loaded model that speaks."""

    @property
    def rate(self) -> int:
        """Samples a second."""

    @property
    def names(self) -> Sequence[str]:
        """Of its voices; the first is used where nobody names one."""

    @property
    def limit(self) -> int:
        """Phonemes that it speaks in one run, at normal speed."""

    def phonemes(self, clauses: Sequence[str]) -> list[str]:
        """The sounds of each clause: words of letters and apostrophes between single spaces. One character is one phoneme.

        Raises:
            EngineFault: A program that it needs failed.
        """

    def speak(self, phonemes: str, name: str, speed: float) -> Floats:
        """Sound of one run in the voice `name`, [samples], mostly within -1 and 1."""
