"""Lists in OpenAI's form: `after`, `limit`, `order`, and the first and last id of what is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from edgewise.core.errors import InvalidRequest, NotFound, UnknownField


@dataclass(frozen=True, slots=True)
class Page:
    """Attributes:
    after: Id of the last object that the caller has seen.
    """

    after: str | None
    limit: int
    order: Literal["asc", "desc"]


def read_page(query: Mapping[str, str], *, default: int, largest: int, also: Set[str] = frozenset()) -> Page:
    """Raises `InvalidRequest`, naming the parameter. `also` names further parameters that the route has."""
    for name in query:
        if name not in {"after", "limit", "order"} | also:
            raise UnknownField(f"Unknown parameter '{name[:80]}': remove it.", param=name[:80])
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and 1 <= int(text) <= largest):
        raise InvalidRequest(f"'limit' is '{text[:20]}': it must be from 1 to {largest}.", param="limit")
    order = query.get("order", "desc")
    if order == "asc":
        return Page(query.get("after"), int(text), "asc")
    if order != "desc":
        raise InvalidRequest(f"'order' is '{order[:20]}': it must be 'asc' or 'desc'.", param="order")
    return Page(query.get("after"), int(text), "desc")


def page(oldest_first: Sequence[Mapping[str, Any]], wanted: Page) -> dict[str, Any]:
    """One page of objects with an `id` each."""
    found = list(oldest_first) if wanted.order == "asc" else list(reversed(oldest_first))
    start = 0
    if wanted.after is not None:
        places = [index for index, one in enumerate(found) if one["id"] == wanted.after]
        if not places:
            raise NotFound(f"'after' names '{wanted.after[:80]}', which is not in this list.", param="after")
        start = places[0] + 1
    shown = found[start : start + wanted.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + wanted.limit < len(found),
    }
