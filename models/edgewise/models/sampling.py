"""What a model's makers recommend for drawing its tokens; used for the fields that a request leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edgewise.core.errors import BadModelFile
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object

# Name -> lowest and highest value; the meanings are those of `engine.request.SamplingParams`.
LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 1 << 20),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 0.999999),
    "repetition_penalty": (1e-3, 100.0),
}


GENERATION_CONFIG: Final = "generation_config.json"


def check_sampling(raw: Mapping[str, Any]) -> dict[str, float]:
    """Recommended values from a catalog or manifest.

    Raises:
        ValueError: An unknown name, or a value that is no number within its limits; the message names it.
    """
    if unknown := sorted(set(raw) - set(LIMITS)):
        raise ValueError(f"unknown sampling value {unknown[0]!r} (known: {', '.join(LIMITS)})")
    return {name: _checked(name, value) for name, value in raw.items()}


def recommended_sampling(files: ModelFiles) -> dict[str, float]:
    """Of a Hugging Face folder: the values that its generation_config.json sets. GGUF has none.

    Raises:
        BadModelFile: A value is no number within its limits.
    """
    if files.format != "safetensors":
        return {}
    path = files.paths.get(GENERATION_CONFIG)
    raw = {} if path is None else read_object(path, GENERATION_CONFIG)
    try:
        return check_sampling({name: raw[name] for name in LIMITS if raw.get(name) is not None})
    except ValueError as error:
        raise BadModelFile(f"{GENERATION_CONFIG} of model {files.name!r}: {error}.") from error


def _checked(name: str, value: object) -> float:
    low, high = LIMITS[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}: it must be a number from {low:g} to {high:g}")
    return value
