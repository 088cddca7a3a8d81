"""Pages of long lists: a cursor names the last row that was seen, so no page skips or repeats one when others are added."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from edgewise.core.errors import InvalidRequest

LARGEST = 1000


def check_limit(limit: int) -> int:
    """Raises `InvalidRequest` beyond the limits of a page."""
    if not 1 <= limit <= LARGEST:
        raise InvalidRequest(f"'limit' is {limit}: it must be from 1 to {LARGEST}.", param="limit")
    return limit


def write_cursor(*parts: Any) -> str:
    """A text for `after` that stands for a row: its sort values."""
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def read_cursor(after: str, kinds: Sequence[type | tuple[type, ...]]) -> list[Any]:
    """The values that `write_cursor` wrote.

    Raises:
        InvalidRequest: It is no cursor of this list.
    """
    try:
        parts = json.loads(base64.b64decode(after + "=" * (-len(after) % 4), altchars=b"-_", validate=True))
    except ValueError:
        parts = None
    if (
        not isinstance(parts, list)
        or len(parts) != len(kinds)
        or not all(isinstance(part, kind) for part, kind in zip(parts, kinds, strict=True))
    ):
        raise InvalidRequest(
            "'after' is no cursor of this list: take the one that the page before gave.", param="after"
        )
    return parts
