"""What the twin needs of one shadow: how its documents are checked, applied and shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from edgewise.wire.fleet import LocalEdit
from edgewise.wire.fleet import Shadow as Name

Document = Mapping[str, Any]
Report = Callable[[str], Awaitable[None]]
"""Told how far it is, for people."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of applying a document: in force, or on its way until a new start."""

    state: Literal["applied", "pending"] = "applied"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """What is in force: a document, and what somebody at the device has set otherwise."""

    document: dict[str, Any] = field(default_factory=dict)
    edits: tuple[LocalEdit, ...] = ()


class ShadowPart(Protocol):
    """One of config, models, software, policy."""

    @property
    def name(self) -> Name: ...

    def check(self, document: Document) -> None:
        """Refuse a bad document whole, with an `EdgewiseError` that names what is wrong. No effect."""

    async def apply(self, gen: int, document: Document, report: Report) -> Applied:
        """Bring it into force; called again after a new start for one that was not, and then does only what is missing. Cancelled
        when a newer document arrives.

        Raises:
            EdgewiseError: It cannot be now (`retryable`), or not at all: then what was in force still is.
        """

    async def show(self) -> Shown: ...


def unknown(document: Document, known: Sequence[str]) -> list[str]:
    """Keys of a document that this release does not know; a later fleet may send them, and they are ignored."""
    return [key for key in document if key not in known]
