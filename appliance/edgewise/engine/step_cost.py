"""What prompt tokens cost in a step, learned from the steps themselves.

The extra time of a step that computes prompts is modelled as

    fixed + per_token * n + per_context * c + per_pair * p

with n prompt tokens, c the tokens of context that their chunks read (each chunk gathers its whole context once), and p the pairs
of a token and the position it attends to. `fixed` is one cost beside running streams and another one without them: what a step
costs anyway, as reading the weights, is the streams' share where there are some. The costs are not negative; they are fitted by
exponentially weighted least squares on relative errors, solved by coordinate descent from the costs before. A chunk over a long
context is thus expected to be as dear as it is, and a machine on which launching a step dominates shows as a large fixed cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FORGET = 0.97
_SWEEPS = 4
# Typical sizes, so that the costs are of one order.
_TOKENS, _CONTEXT, _PAIRS = 64.0, 4096.0, 64.0 * 4096.0
_SIZE = 5


@dataclass(frozen=True, slots=True)
class PromptLoad:
    """The prompt work of one step: tokens, tokens of context read, pairs of token and position."""

    tokens: int = 0
    context: int = 0
    pairs: int = 0

    def plus(self, start: int, count: int) -> PromptLoad:
        """With a chunk of `count` tokens from position `start` on."""
        end = start + count
        return PromptLoad(
            self.tokens + count, self.context + end, self.pairs + (end * (end + 1) - start * (start + 1)) // 2
        )

    def features(self, *, alone: bool) -> tuple[float, float, float, float, float]:
        """Fixed beside streams, tokens, context, pairs, fixed without streams."""
        return (
            0.0 if alone else 1.0,
            self.tokens / _TOKENS,
            self.context / _CONTEXT,
            self.pairs / _PAIRS,
            float(alone),
        )


@dataclass(slots=True)
class PromptCost:
    """Learned costs in seconds per scaled unit; `samples` counts what they rest on."""

    weights: list[float] = field(default_factory=lambda: [0.0] * _SIZE)
    samples: int = 0
    _gram: list[list[float]] = field(default_factory=lambda: [[0.0] * _SIZE for _ in range(_SIZE)])
    _moment: list[float] = field(default_factory=lambda: [0.0] * _SIZE)

    def seconds(self, load: PromptLoad, *, alone: bool) -> float:
        """Predicted extra seconds of a step with that load; `alone`: without running streams."""
        return sum(w * x for w, x in zip(self.weights, load.features(alone=alone), strict=True))

    def fixed(self, start: int, *, alone: bool) -> float:
        """Seconds of a chunk at `start` that do not depend on its length."""
        return self.weights[4 if alone else 0] + self.weights[2] * start / _CONTEXT

    def observe(self, load: PromptLoad, extra_s: float, step_s: float, *, alone: bool) -> None:
        """Learn from a step of `step_s` seconds, `extra_s` of which are put down to `load`."""
        x = load.features(alone=alone)
        weight = 1.0 / (step_s * step_s)
        if self.samples == 0:
            self.weights[1] = extra_s / x[1]
        self.samples += 1
        for i in range(_SIZE):
            self._moment[i] = _FORGET * self._moment[i] + weight * x[i] * extra_s
            row = self._gram[i]
            for j in range(_SIZE):
                row[j] = _FORGET * row[j] + weight * x[i] * x[j]
        self._solve()

    def _solve(self) -> None:
        for _ in range(_SWEEPS):
            for i, row in enumerate(self._gram):
                if row[i] > 0.0:
                    rest = sum(row[j] * self.weights[j] for j in range(_SIZE) if j != i)
                    self.weights[i] = max(0.0, (self._moment[i] - rest) / row[i])
