"""Formats of RFC 3339 as patterns: the grammar compiler's own would let 29 February pass in any year."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_CLOCK})"

PATTERNS: Mapping[str, str] = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}

_ONE = ("additionalProperties", "items")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def with_dates(schema: Any) -> Any:
    """The same (checked) schema, dates and times as patterns, wherever a schema may stand in it."""
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    for keyword in _ONE:
        if keyword in made:
            made[keyword] = with_dates(made[keyword])
    for keyword in _LISTS:
        if keyword in made:
            made[keyword] = [with_dates(one) for one in made[keyword]]
    for keyword in _MAPS:
        if keyword in made:
            made[keyword] = {name: with_dates(one) for name, one in made[keyword].items()}
    pattern = PATTERNS.get(str(made.get("format")))
    if pattern is not None:
        del made["format"]
        made["allOf"] = [*made.get("allOf", ()), {"pattern": pattern}]
    return made
