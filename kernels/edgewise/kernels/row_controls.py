"""How a row of logits is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RowControls:
    """How one row is drawn; field meanings as in `SamplingParams`.

    Attributes:
        uniform: Number in [0, 1) that decides the draw; unused when greedy.
        seen: Ids in prompt or output (repetition penalty). counts: occurrences in the output (presence, frequency).
        banned: Ids that must not be drawn (stop tokens before min_tokens); void where nothing else is allowed.
        allowed: One bit per id, the lowest bit of the first byte first: the only ids that may be drawn. Ids beyond its end
            are not allowed. None allows all.
        group_from: The ids from here on are drawn from alone where together they are likelier than the likeliest id before
            them, among what is allowed and before the temperature; None for no such rule.
        top_logprobs: None for no log probabilities.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seen: Sequence[int] = ()
    counts: Mapping[int, int] = field(default_factory=dict)
    bias: Mapping[int, float] = field(default_factory=dict)
    banned: Sequence[int] = ()
    allowed: bytes | None = None
    group_from: int | None = None
    top_logprobs: int | None = None

    @property
    def plain_greedy(self) -> bool:
        return (
            self.temperature == 0.0
            and self.repetition_penalty == 1.0
            and self.presence_penalty == 0.0
            and self.frequency_penalty == 0.0
            and not self.bias
            and not self.banned
            and self.allowed is None
            and self.group_from is None
        )
