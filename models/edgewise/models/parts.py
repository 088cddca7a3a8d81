"""Answers that come in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parts:
    """What a model computes for an answer that shall begin before it is whole: one input for each part, in order."""

    inputs: Sequence[Any]
