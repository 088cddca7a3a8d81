"""The field `keep_alive`: how long a model stays loaded after an answer, as users of Ollama write it."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

FOREVER = math.inf
MAX_SECONDS = 10 * 365 * 86_400.0
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"
_RULE = 'must be a number of seconds, 0 to unload at once, -1 for ever, or a time such as "10m" or "1h30m"'


def keep_alive_seconds(value: Any) -> float | None:
    """Seconds; infinite for ever, None for the model's setting.

    Args:
        value: A number, a number in a string, or a time in Go's notation ("90s", "1h30m"); below 0 means for ever.

    Raises:
        PydanticCustomError: Of the wrong type ("wrong_type"), or no such text ("bad_value").
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise PydanticCustomError("wrong_type", "{text}", {"text": _RULE})
    seconds = _read(value.strip()) if isinstance(value, str) else value
    if seconds != seconds:  # not a number
        raise PydanticCustomError("bad_value", "{text}", {"text": _RULE})
    return FOREVER if seconds < 0 else float(min(seconds, MAX_SECONDS))


def _read(text: str) -> float:
    """Not a number where it is none."""
    sign, size = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", size):
        return sign * float(size)
    if len(size) <= 40 and re.fullmatch(f"(?:{_PART})+", size):
        return sign * sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, size))
    return math.nan


KeepAlive = Annotated[
    Any, BeforeValidator(keep_alive_seconds), Field(json_schema_extra={"type": ["number", "string", "null"]})
]
"""The field's type in a body; its value is that of `keep_alive_seconds`."""
