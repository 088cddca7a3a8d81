"""Privacy labels: how far the text and media of a request may travel."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, get_args

PrivacyName = Literal["private", "site", "any"]
PRIVACY_NAMES: tuple[PrivacyName, ...] = get_args(PrivacyName)


class Privacy(IntEnum):
    """Labels, the strictest first: of several labels the smallest number holds."""

    PRIVATE = 0
    """Stays on this device."""
    SITE = 1
    """May go to appliances of the same site."""
    ANY = 2
    """May go to the cloud."""

    @property
    def label(self) -> PrivacyName:
        """The name that users write and read."""
        return PRIVACY_NAMES[self]


def privacy_of(name: str) -> Privacy:
    """The label of a name, in any case and with spaces around it.

    Raises:
        ValueError: There is no such label; the message names the three.
    """
    try:
        return Privacy(PRIVACY_NAMES.index(name.strip().lower()))
    except ValueError:
        raise ValueError(f"{name[:40]!r} is no privacy label: choose from {', '.join(PRIVACY_NAMES)}") from None
