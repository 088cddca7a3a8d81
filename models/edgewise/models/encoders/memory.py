"""What climbs of ladders were measured to take; torch-free, so that the service can plan with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edgewise.models.encoders.record import HEARING_ROLES

_TEXTS: Final = 12
"""Times the weights in float32: 1,053 MiB for all-MiniLM-L6-v2."""
_FIXED: Final[Mapping[str, int]] = {"vision": 900 << 20}
"""By role: 842 MiB for EfficientNet-lite0."""
_HEARING, _HEARING_FIXED = 8, 1792 << 20
"""Times the weights of the whole model in float32, and beside them: 2,669 MiB for Whisper tiny.en, 3,616 for base, where Kokoro
read aloud."""


def climb_bytes(role: str, weight_bytes: int = 0) -> int:
    """Memory of the process that climbs, by the model's role; 0 where nothing climbs beside requests.

    Args:
        weight_bytes: Of an encoder of texts, or of a model that hears, in float32.
    """
    if role in HEARING_ROLES:
        return _HEARING * weight_bytes + _HEARING_FIXED
    return _TEXTS * weight_bytes if role in ("embeddings", "rerank") else _FIXED.get(role, 0)


def climb_space(role: str, weight_bytes: int = 0) -> int:
    """Address space for it, beyond what is mapped at its start: a few graphs at once, and what the runtime reserves."""
    return space_for(climb_bytes(role, weight_bytes))


def space_for(size: int) -> int:
    """The same by the memory that it may take."""
    return 2 * size + (1 << 30)
