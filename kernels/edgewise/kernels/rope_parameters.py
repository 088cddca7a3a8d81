"""Parameters of rotary position embeddings. Torch-free, so that a model's configuration can hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """How positions turn into angles (Su et al. 2021, RoFormer) and how the context was stretched.

    Attributes:
        kind: "linear" divides all frequencies by `factor` (Chen et al. 2023); "llama3" only the low ones, smoothly; "yarn"
            by a ramp over the dimensions (Peng et al. 2023, YaRN).
        theta: Base of the geometric series of frequencies.
        factor: Stretch of the context, >= 1; unused by "default".
        original_max_position: Context before the stretch, in tokens; "llama3" and "yarn".
        low_freq_factor, high_freq_factor: "llama3": wavelengths above original / low are stretched, below original / high not.
        attention_factor: "yarn": multiplies cosine and sine, and so the scores by its square.
        beta_fast, beta_slow, truncate: "yarn": rotations over the original context that bound the ramp, and whether the
            bounds are rounded outward to whole dimensions.
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
