"""Parameters of rotary position embeddings. Torch-free, so that a model's configuration can hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """How positions turn into angles (Su et al. 2021, RoFormer) and how the context was stretched.

    Attributes:
        kind: "linear" divides all frequencies by `factor` (Chen et al. 2023); "llama3" only the low ones, smoothly; "yarn"
            by a ramp over the dimensions (Peng et al. 2023, YaRN); "longrope" by a searched divisor for each, one set for
            contexts up to the original one and another for longer ones (Ding et al. 2024, LongRoPE).
        theta: Base of the geometric series of frequencies.
        factor: Stretch of the context, >= 1; unused by "default".
        original_max_position: Context before the stretch, in tokens; "llama3", "yarn" and "longrope".
        low_freq_factor, high_freq_factor: "llama3": wavelengths above original / low are stretched, below original / high not.
        attention_factor: "yarn" and "longrope": multiplies cosine and sine, and so the scores by its square.
        beta_fast, beta_slow, truncate: "yarn": rotations over the original context that bound the ramp, and whether the
            bounds are rounded outward to whole dimensions.
        short_divisors, long_divisors: "longrope": one per angle; empty where the weight file holds them.
        served_context: "longrope": the longest context that is served, in tokens. It decides once which set is used, so that
            cached keys stay valid and a token's angles do not depend on the length of the text around it.
        sections: How many angles turn by each of three positions (time, height, width): M-RoPE (Wang et al. 2024, Qwen2-VL); they
            sum to half the dimensions that rotate. Empty where positions have one dimension.
        interleaved: The three take turns among the angles (Qwen3-VL); else they follow one another.
    """

    kind: RopeKind = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    served_context: int = 0
    sections: tuple[int, ...] = ()
    interleaved: bool = False

    @property
    def is_long(self) -> bool:
        """Whether contexts beyond the original one are served."""
        return self.served_context > self.original_max_position

    @property
    def divisors(self) -> tuple[float, ...]:
        return self.long_divisors if self.is_long else self.short_divisors
