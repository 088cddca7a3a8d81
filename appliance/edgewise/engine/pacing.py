"""How many prompt tokens may ride along with running streams in one step.

A step that also computes prompts takes longer, and every running stream waits for it. The bound aimed at: 95 of 100 steps take at
most `stretch` (1.5) times a step that only decodes. There are two ways to keep it, and the one that computes prompts faster is
taken:

    small chunks  in every step as many prompt tokens as the bound has room for; smooth, and good where tokens are what costs
    bursts        one large chunk, limited in time, after `_CLEAR_STEPS` steps that only decode: fewer than 5 of 100 steps are
                  slow. Good where a chunk costs a lot whatever its length: a GPU's launches, or reading a long context again

What things cost is learned from the steps (`engine.step_cost`), so the rule holds on any machine and as contexts grow. What a
step without prompts costs can only be seen in one: a batch size that is new, or has not been seen alone for a while, gets a
step to itself. While nobody waits for a next token, chunks are as long as `idle_step_s` allows, but not so short that their
fixed cost dominates: a more urgent request that arrives waits for the step under way. Pure arithmetic on durations handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgewise.engine.step_cost import PromptCost, PromptLoad

_SMOOTHING = 0.2
_OUTLIER = 2.0  # a step that took longer than this many times the mean counts as this
_REFRESH_STEPS = 64  # mixed steps after which the cost of decoding alone is measured again
_CLEAR_STEPS = 24  # between two bursts: fewer than 1 in 20 steps is slow
_AIM = 0.7  # share of the allowed stretch that small chunks aim at; the rest is for noise
_SMOOTH_BONUS = 2.0  # small chunks are preferred unless bursts are faster by this factor
_FIXED_SHARE = 0.25  # largest share of a large chunk that may be its fixed cost
_VARY = 8  # one in so many large chunks is shorter
_IDLE_ENCODE_S = 0.25  # of an encoder in one step while nobody waits for a next token: so long waits who comes then
_FIRST_CHUNK = 64  # tokens of the first chunk ever, when nothing is known


@dataclass(slots=True)
class Pacer:
    """Learns step costs and hands out budgets for prompts.

    Attributes:
        max_step_tokens: Upper bound of a step, in tokens.
        stretch: Allowed ratio of a step with prompts to one without, for 95 of 100 steps.
        idle_step_s: Time aimed at for a step while nobody waits for a next token, in seconds.
        grain: Small chunks are multiples of this and never below it: prompts always move on.
        decode_s: Learned duration of a step that only decodes, per batch size (a power of two rounded up).
        cost: Learned cost of prompts.
        mixed_steps, clear_steps: Steps with prompts since the last one without, per batch size; and the other way round, in all.
    """

    max_step_tokens: int
    stretch: float = 1.5
    idle_step_s: float = 0.05
    grain: int = 4
    decode_s: dict[int, float] = field(default_factory=dict)
    cost: PromptCost = field(default_factory=PromptCost)
    mixed_steps: dict[int, int] = field(default_factory=dict)
    clear_steps: int = 0

    def budget(self, decoding: int, *, start: int = 0, paced: bool = True) -> int:
        """Prompt tokens allowed beside `decoding` streams; 0 asks for a step that only decodes.

        Args:
            decoding: Streams that get a token in this step.
            start: Position at which the first chunk begins.
            paced: Whether one of the streams is as urgent as the prompt, so that it may not be made to wait.
        """
        room = max(self.grain, self.max_step_tokens - decoding)
        if decoding == 0 or not paced:
            return self._idle(start, room, alone=decoding == 0)
        base = self.decode_s.get(_bucket(decoding))
        if base is None or self.mixed_steps.get(_bucket(decoding), 0) >= _REFRESH_STEPS:
            return 0
        if self.cost.samples == 0:
            return self.grain
        return self._beside(base, start, room)

    def patient(self, decoding: int, *, paced: bool) -> bool:
        """Whether a step may take longer than streams should wait: a picture that must be computed whole is longer than a chunk.

        Fewer than 1 in `_CLEAR_STEPS` steps is slow, so that 95 of 100 keep their pace.
        """
        return decoding == 0 or not paced or self.clear_steps >= _CLEAR_STEPS

    def encode_s(self, decoding: int, *, paced: bool, part_s: float) -> float:
        """Seconds of this step that an encoder of pictures or sound may take; 0 for none.

        As with prompts: a little in every step, if its parts are small enough; else as much as `_CLEAR_STEPS` steps take after so
        many, so that it gets about half of the time, and no stream waits longer than that.

        Args:
            decoding, paced: As of `budget`.
            part_s: What a part of the encoder takes, which is not interrupted.
        """
        if decoding == 0 or not paced:
            return _IDLE_ENCODE_S
        base = self.decode_s.get(_bucket(decoding))
        if base is None:
            return 0.0
        allowed = _AIM * (self.stretch - 1.0) * base
        if part_s <= allowed:
            return allowed
        return _CLEAR_STEPS * base if self.clear_steps >= _CLEAR_STEPS else 0.0

    def encoded(self, decoding: int, seconds: float) -> None:
        """An encoder took so long beside streams, in a step that `observe` was told of already."""
        base = self.decode_s.get(_bucket(decoding), 0.0)
        if decoding and seconds > (self.stretch - 1.0) * base:
            self.clear_steps = 0

    def recompute_s(self, tokens: int) -> float | None:
        """Seconds to compute the first `tokens` of a sequence again, in the largest chunks; None before a prompt was seen."""
        if self.cost.samples == 0:
            return None
        chunks = -(-tokens // self.max_step_tokens)
        whole = self.cost.seconds(PromptLoad().plus(0, tokens), alone=False)
        return whole + (chunks - 1) * self.cost.fixed(tokens // 2, alone=False)

    def tokens_in(self, seconds: float) -> float | None:
        """Prompt tokens that could have been computed in this time, in the largest chunks; None before a prompt was seen."""
        if self.cost.samples == 0:
            return None
        chunk = self.cost.seconds(PromptLoad().plus(0, self.max_step_tokens), alone=True)
        if chunk <= 0.0:
            chunk = self.cost.seconds(PromptLoad().plus(0, self.max_step_tokens), alone=False)
        return seconds * self.max_step_tokens / chunk if chunk > 0.0 else None

    def observe(self, *, decoding: int, load: PromptLoad, seconds: float) -> None:
        """Learn from one finished step of `decoding` streams and the prompts of `load`."""
        bucket = _bucket(decoding)
        base = self.decode_s.get(bucket, 0.0) if decoding else 0.0
        if load.tokens == 0:
            self.decode_s[bucket] = _blend(base, seconds)
            self.mixed_steps[bucket] = 0
            self.clear_steps += 1
            return
        if decoding:
            self.mixed_steps[bucket] = self.mixed_steps.get(bucket, 0) + 1
            self.clear_steps = 0
        if decoding == 0 or base:
            self.cost.observe(load, max(seconds - base, 1e-7), max(seconds, 1e-7), alone=decoding == 0)

    def speculated(self) -> None:
        """A step of streams alone computed guesses as well: it made nobody wait for a prompt, but is no measure of such steps."""
        self.clear_steps += 1

    def _idle(self, start: int, room: int, *, alone: bool) -> int:
        if self.cost.samples == 0:
            return min(room, _FIRST_CHUNK)
        return max(self.grain, self._large(self.idle_step_s, start, room, alone=alone))

    def _large(self, seconds: float, start: int, room: int, *, alone: bool) -> int:
        """Tokens of a chunk that may take `seconds`, or longer where fixed cost would be more than a share of it.

        Now and then a chunk is shorter by a quarter: from chunks of one length nobody can tell what depends on the length.
        """
        patience = max(seconds, self.cost.fixed(start, alone=alone) / _FIXED_SHARE)
        tokens = self._within(patience, start, room, alone=alone)
        return tokens if self.cost.samples % _VARY else tokens * 3 // 4 // self.grain * self.grain

    def _beside(self, base: float, start: int, room: int) -> int:
        allowed = _AIM * (self.stretch - 1.0) * base
        small = self._within(allowed, start, room)
        burst = self._large(max(base, self.idle_step_s), start, room, alone=False)
        small_rate = small / (base + allowed)
        burst_rate = burst / (
            (_CLEAR_STEPS + 1) * base + self.cost.seconds(PromptLoad().plus(start, burst), alone=False)
        )
        if small and small_rate * _SMOOTH_BONUS >= burst_rate:
            return small
        return max(self.grain, burst) if self.clear_steps >= _CLEAR_STEPS else 0

    def _within(self, seconds: float, start: int, room: int, *, alone: bool = False) -> int:
        """Most tokens, in grains, of a chunk from `start` on that should take at most `seconds`; 0 if a grain takes more."""
        low, high = 0, room // self.grain
        while low < high:
            middle = (low + high + 1) // 2
            if self.cost.seconds(PromptLoad().plus(start, middle * self.grain), alone=alone) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low * self.grain


def _bucket(decoding: int) -> int:
    return 1 << max(decoding - 1, 0).bit_length()


def _blend(old: float, new: float) -> float:
    return old + _SMOOTHING * (min(new, _OUTLIER * old) - old) if old else new
