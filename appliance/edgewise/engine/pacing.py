"""How many prompt tokens may ride along with running streams in one step.

A step that also prefills takes longer, and every running stream waits for it. The bound that Edgewise states: a step with
prefill takes at most `stretch` (1.5) times a step without. Both costs are learned from the steps themselves, as exponentially
weighted means, so that the bound holds on any machine and as contexts grow. Pure arithmetic on durations handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_SMOOTHING = 0.2


@dataclass(slots=True)
class Pacer:
    """Learns step costs and hands out prefill budgets.

    Attributes:
        max_step_tokens: Upper bound of a step, in tokens; the budget when nobody is waiting for a next token.
        stretch: Allowed ratio of a step with prefill to one without.
        grain: Budgets are multiples of this and never below it: prefill always moves on.
        decode_s: Learned duration of a step that only decodes, per batch size (a power of two rounded up).
        prefill_token_s: Learned extra duration per prompt token.
    """

    max_step_tokens: int
    stretch: float = 1.5
    grain: int = 16
    decode_s: dict[int, float] = field(default_factory=dict)
    prefill_token_s: float | None = None

    def budget(self, decoding: int) -> int:
        """Prompt tokens allowed beside `decoding` running streams."""
        if decoding == 0:
            return self.max_step_tokens
        room = max(self.grain, self.max_step_tokens - decoding)
        base = self.decode_s.get(_bucket(decoding))
        if base is None or self.prefill_token_s is None:
            return self.grain
        affordable = int((self.stretch - 1.0) * base / self.prefill_token_s)
        return min(room, max(self.grain, affordable // self.grain * self.grain))

    def observe(self, *, decoding: int, prefilling: int, seconds: float) -> None:
        """Learn from one finished step of `decoding` streams and `prefilling` prompt tokens."""
        if prefilling == 0:
            if decoding:
                self.decode_s[_bucket(decoding)] = _blend(self.decode_s.get(_bucket(decoding)), seconds)
            return
        base = self.decode_s.get(_bucket(decoding), 0.0) if decoding else 0.0
        if decoding and base == 0.0:
            return  # the shares of a mixed step cannot be told apart yet
        per_token = max(seconds - base, 1e-7) / prefilling
        self.prefill_token_s = _blend(self.prefill_token_s, per_token)


def _bucket(decoding: int) -> int:
    return 1 << (decoding - 1).bit_length()


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
