"""Typed access to a model's configuration, whose values may be anything. Errors name the file and the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewise.core.errors import BadModelFile, UnsupportedModel

MAX_SIZE = 1 << 24


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping of keys to values; `where` is what errors call it."""

    values: Mapping[str, Any]
    where: str

    def get(self, key: str, default: Any = None) -> Any:
        """The value; `default` if the key is missing or its value null."""
        value = self.values.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A whole number from 1 to `most`; missing is an error unless there is a default."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.bad(key, f"a whole number from 1 to {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; missing is an error unless there is a default."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.bad(key, "a number above 0")
        return float(value)

    def optional_positive(self, key: str) -> float | None:
        """A finite number above 0, or None where the key is missing or null."""
        return None if self.get(key) is None else self.positive(key)

    def positives(self, key: str, count: int) -> tuple[float, ...]:
        """A list of `count` finite numbers above 0."""
        values = self.get(key)
        if not isinstance(values, list) or len(values) != count:
            raise self.bad(key, f"a list of {count} numbers above 0")
        return tuple(Fields({key: value}, self.where).positive(key) for value in values)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def bad(self, key: str, rule: str) -> BadModelFile:
        found = f"is {self.values[key]!r}" if key in self.values else "is missing"
        return BadModelFile(f"{self.where}: '{key}' {found}; it must be {rule}.")

    def unsupported(self, key: str, supported: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.where}: '{key}' is {self.values.get(key)!r}; this build supports {supported}.")

    def refuse_unless_neutral(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse features that would change the result and are not implemented, by name.

        Args:
            neutral: Key -> values that leave the result as it is, None (missing or null) aside.
        """
        for key, values in neutral.items():
            value = self.values.get(key)
            if value is not None and value not in values:
                raise self.unsupported(key, " or ".join(map(repr, values)) if values else "models without it")
