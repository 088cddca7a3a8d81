"""The lines of the table of speeds on a GPU: work, vLLM's figure and the goal. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgewise.models.decoder.native.formats import Quantize


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of the table: `batch` answers after prompts of `context` tokens.

    Attributes:
        peer: The peer's figure, or None.
        goal: Ours: at most so many milliseconds, of prefill at least so many tokens a second.
    """

    shape: str
    batch: int
    context: int
    kv: str = "bfloat16"
    weights: Quantize = "none"
    prefill: bool = False
    peer: float | None = None
    goal: float | None = None

    @property
    def name(self) -> str:
        kind = "prefill" if self.prefill else "decode"
        forms = "".join(f" {form}" for form in (self.kv, self.weights) if form not in ("bfloat16", "none"))
        return f"{kind} {self.shape} {self.batch}x{self.context}{forms}"


LINES = (
    Line(shape="llama-1b", batch=1, context=128, peer=1.54, goal=0.80),
    Line(shape="llama-1b", batch=8, context=128, peer=1.47, goal=0.90),
    Line(shape="llama-1b", batch=32, context=128, peer=1.71, goal=1.05),
    Line(shape="llama-1b", batch=64, context=1024, peer=2.18),
    Line(shape="llama-1b", batch=1, context=32000, prefill=True, peer=129_000, goal=130_000),
    Line(shape="llama-3b", batch=1, context=128, peer=2.71, goal=1.90),
    Line(shape="llama-8b", batch=1, context=128, peer=4.85, goal=4.1),
    Line(shape="llama-8b", batch=8, context=128, peer=4.92),
    Line(shape="llama-8b", batch=32, context=128, peer=5.43),
    Line(shape="llama-8b", batch=64, context=1024, peer=7.5, goal=7.0),
    Line(shape="llama-8b", batch=1, context=32000, prefill=True, peer=28_000, goal=28_000),
    Line(shape="llama-8b", batch=16, context=8000, kv="int8", peer=8.0, goal=6.6),
    Line(shape="llama-8b", batch=1, context=32000, kv="int8", peer=5.83, goal=4.9),
    Line(shape="llama-8b", batch=16, context=8000, kv="fp8", peer=8.0, goal=6.6),
    Line(shape="llama-8b", batch=1, context=128, weights="int8", goal=2.3),
    Line(shape="llama-8b", batch=64, context=1024, weights="int8"),
    Line(shape="llama-8b", batch=1, context=32000, weights="int8", prefill=True),
    Line(shape="llama-8b", batch=1, context=128, weights="int4", goal=1.5),
    Line(shape="llama-8b", batch=1, context=128, weights="fp8"),
    Line(shape="llama-8b", batch=64, context=1024, weights="fp8"),
    Line(shape="llama-8b", batch=1, context=32000, weights="fp8", prefill=True),
)

MIXTURES = (
    Line(shape="qwen3-moe-11b", batch=1, context=128),
    Line(shape="qwen3-moe-11b", batch=8, context=128),
    Line(shape="qwen3-moe-11b", batch=64, context=1024),
    Line(shape="qwen3-moe-11b", batch=1, context=8000, prefill=True),
    Line(shape="qwen3-moe-11b", batch=1, context=128, weights="int4"),
    Line(shape="mixtral-12b", batch=1, context=128),
    Line(shape="mixtral-12b", batch=1, context=8000, prefill=True),
)
"""Mixtures of experts, which stand beside the table: they have neither a peer's figure nor a goal."""


def lines_of(words: Sequence[str]) -> list[Line]:
    """The lines that are meant: a word that is a line's whole name means that line alone; none means the table."""
    every = (*LINES, *MIXTURES)
    names = {line.name for line in every}
    exact = {word for word in words if word in names}
    parts = [word for word in words if word not in names]
    if not words:
        return list(LINES)
    return [line for line in every if line.name in exact or any(part in line.name for part in parts)]
