"""Deadline classes: how urgent a request is, by one word in headers, keys and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Literal, get_args

PriorityName = Literal["realtime", "interactive", "background", "bulk"]
PRIORITY_NAMES: tuple[PriorityName, ...] = get_args(PriorityName)


class Priority(IntEnum):
    """Deadline classes, most urgent first: a smaller number is more urgent."""

    REALTIME = 0
    INTERACTIVE = 1
    BACKGROUND = 2
    BULK = 3

    @property
    def label(self) -> PriorityName:
        """The name that users write and read."""
        return PRIORITY_NAMES[self]


_BY_NAME: Mapping[str, Priority] = {priority.label: priority for priority in Priority}


def priority_of(name: str) -> Priority:
    """The class of a name, in any case and with spaces around it.

    Raises:
        ValueError: There is no such class; the message names the four.
    """
    priority = _BY_NAME.get(name.strip().lower())
    if priority is None:
        raise ValueError(f"{name[:40]!r} is no deadline class: choose from {', '.join(PRIORITY_NAMES)}")
    return priority


def priorities_by_name(entries: Iterable[str]) -> Mapping[str, Priority]:
    """Classes from settings such as "starter=background".

    Raises:
        ValueError: An entry has another form, or names no class.
    """
    return dict(_entry(entry) for entry in entries)


def _entry(entry: str) -> tuple[str, Priority]:
    name, separator, value = entry.partition("=")
    if not separator or not name.strip():
        raise ValueError(f"{entry[:80]!r} is not of the form NAME=CLASS, such as 'starter=background'")
    return name.strip(), priority_of(value)
