"""How the calls in one request's answers are read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewise.pipeline.tools.scanner import CallScanner
from edgewise.pipeline.tools.styles import ToolStyle


@dataclass(frozen=True, slots=True)
class CallReading:
    """Attributes:
    names: Functions that may be called.
    parallel: More than one call in an answer.
    revealed: Control tokens that belong to the style, with their written form: the reader must see them.
    """

    style: ToolStyle
    names: frozenset[str]
    parallel: bool
    revealed: Mapping[int, bytes]

    def scanner(self) -> CallScanner:
        return CallScanner(self.style, self.names, parallel=self.parallel)


def call_id(seed: int, prompt: Sequence[int], answer: int, call: int) -> str:
    """A call's id: the same for the same call of the same answer, however often it is made, and no other's."""
    facts = f"{seed}/{answer}/{call}/{','.join(map(str, prompt))}"
    return f"call_{hashlib.sha256(facts.encode()).hexdigest()[:24]}"
