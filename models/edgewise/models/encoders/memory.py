"""What climbs of ladders were measured to take; torch-free, so that the service can plan with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TEXTS: Final = 12
"""Times the weights in float32: 1,053 MiB for all-MiniLM-L6-v2."""
_FIXED: Final[Mapping[str, int]] = {"vision": 900 << 20}
"""By role: 842 MiB for EfficientNet-lite0."""


def climb_bytes(role: str, weight_bytes: int = 0) -> int:
    """Memory of the process that climbs, by the model's role; 0 where nothing climbs beside requests.

    Args:
        weight_bytes: Of an encoder of texts, in float32.
    """
    return _TEXTS * weight_bytes if role in ("embeddings", "rerank") else _FIXED.get(role, 0)


def climb_space(role: str, weight_bytes: int = 0) -> int:
    """Address space for it, beyond what is mapped at its start: a few graphs at once, and what the runtime reserves."""
    return 2 * climb_bytes(role, weight_bytes) + (1 << 30)
