"""How many prompt tokens may ride along with running streams in one step.

A step that also prefills takes longer, and every running stream waits for it. The bound aimed at: a step with prefill takes at
most `stretch` (1.5) times a step without. Prefill never stops, though: its smallest chunk is one `grain`, and where even that
costs more the bound is passed. Chunks need not fill pages; a small grain keeps the bound where a prompt token is dear, as over
long contexts (docs/benchmarks.md has figures). Both costs are learned from the steps themselves, as exponentially weighted
means, so that the rule holds on any machine and as contexts grow. What a step without prefill costs can only be seen in one: a
batch size that is new, or has not been seen alone for a while, gets a step to itself. Pure arithmetic on durations handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_SMOOTHING = 0.2
_REFRESH_STEPS = 64  # mixed steps after which the cost of decoding alone is measured again


@dataclass(slots=True)
class Pacer:
    """Learns step costs and hands out prefill budgets.

    Attributes:
        max_step_tokens: Upper bound of a step, in tokens; the budget when nobody is waiting for a next token.
        stretch: Allowed ratio of a step with prefill to one without.
        grain: Budgets are multiples of this and never below it: prefill always moves on.
        decode_s: Learned duration of a step that only decodes, per batch size (a power of two rounded up).
        prefill_token_s: Learned extra duration per prompt token.
        mixed_steps: Steps with prefill since the last one without, per batch size.
    """

    max_step_tokens: int
    stretch: float = 1.5
    grain: int = 4
    decode_s: dict[int, float] = field(default_factory=dict)
    prefill_token_s: float | None = None
    mixed_steps: dict[int, int] = field(default_factory=dict)

    def budget(self, decoding: int) -> int:
        """Prompt tokens allowed beside `decoding` running streams; 0 asks for a step that only decodes, to measure it."""
        if decoding == 0:
            return self.max_step_tokens
        room = max(self.grain, self.max_step_tokens - decoding)
        base = self.decode_s.get(_bucket(decoding))
        if base is None or self.mixed_steps.get(_bucket(decoding), 0) >= _REFRESH_STEPS:
            return 0
        if self.prefill_token_s is None:
            return self.grain
        affordable = int((self.stretch - 1.0) * base / self.prefill_token_s)
        return min(room, max(self.grain, affordable // self.grain * self.grain))

    def observe(self, *, decoding: int, prefilling: int, seconds: float) -> None:
        """Learn from one finished step of `decoding` streams and `prefilling` prompt tokens."""
        bucket = _bucket(decoding)
        if prefilling == 0:
            self.decode_s[bucket] = _blend(self.decode_s.get(bucket), seconds)
            self.mixed_steps[bucket] = 0
            return
        base = self.decode_s.get(bucket, 0.0) if decoding else 0.0
        if decoding:
            self.mixed_steps[bucket] = self.mixed_steps.get(bucket, 0) + 1
        self.prefill_token_s = _blend(self.prefill_token_s, max(seconds - base, 1e-7) / prefilling)


def _bucket(decoding: int) -> int:
    return 1 << max(decoding - 1, 0).bit_length()


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
