"""Places in a stream, and the hash over all its items that both ends compute."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from edgewise.core.errors import InvalidRequest


class Place(NamedTuple):
    """How far a consumer is: it has every item below `offset`, the last of them as `attempt` made it."""

    attempt: int
    offset: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.offset}"


START = Place(0, 0)


def parse_place(text: str, *, param: str = "from") -> Place:
    """The place that `text` names, as `attempt.offset`.

    Raises:
        InvalidRequest: It has another form.
    """
    attempt, separator, offset = text.partition(".")
    if not (separator and attempt.isascii() and attempt.isdigit() and offset.isascii() and offset.isdigit()):
        raise InvalidRequest(f"'{param}' is {text[:40]!r}: write attempt.offset, such as 1.37.", param=param)
    if len(text) > 20:
        raise InvalidRequest(f"'{param}' is {text[:40]!r}: both numbers have at most nine digits.", param=param)
    return Place(int(attempt), int(offset))


class StreamHash:
    """SHA-256 over a stream's items: tokens as 4 bytes each, the least significant first; text as UTF-8.

    What belongs to no stream (pictures) is hashed as blobs.
    """

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def tokens(self, tokens: Iterable[int]) -> None:
        self._sha.update(b"".join(token.to_bytes(4, "little") for token in tokens))

    def text(self, text: str) -> None:
        self._sha.update(text.encode())

    def hexdigest(self) -> str:
        """Of all items so far; more may follow."""
        return self._sha.hexdigest()
