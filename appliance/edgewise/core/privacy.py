"""Privacy labels: how far the text and media of a request may travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, final, get_args

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


early_label: ContextVar[Callable[[str], Privacy] | None] = ContextVar("early_label", default=None)
"""Label of the request under way by the name of the model that it asks for, as far as it is known before that model is opened:
opening one must not tell others of a request that stays here. None where there is no request."""


@final
class Clearance:
    """Leave to send a request's input to the cloud. Whatever reaches a cloud engine asks for one.

    Its only argument is the label "any", by type and by value: mypy refuses a call with a label that was not compared with
    `Privacy.ANY` before, and at run time any other one raises.
    """

    __slots__ = ("label",)
    label: Literal[Privacy.ANY]

    def __init__(self, label: Literal[Privacy.ANY]) -> None:
        if label is not Privacy.ANY:
            raise ValueError(f"a request labelled {label!r} does not leave this device")
        self.label = label

    def __repr__(self) -> str:
        return "Clearance(any)"


@final
class SiteClearance:
    """Leave to send a request's input to another appliance of the site, in the same way: its argument is "site" or "any"."""

    __slots__ = ("label",)
    label: Literal[Privacy.SITE, Privacy.ANY]

    def __init__(self, label: Literal[Privacy.SITE, Privacy.ANY]) -> None:
        if label is not Privacy.SITE and label is not Privacy.ANY:
            raise ValueError(f"a request labelled {label!r} does not leave this device")
        self.label = label

    def __repr__(self) -> str:
        return f"SiteClearance({self.label.label})"


def clearance_of(label: Privacy) -> Clearance | None:
    """Leave for the cloud, or None where the label forbids it."""
    return Clearance(label) if label is Privacy.ANY else None


def site_clearance_of(label: Privacy) -> SiteClearance | None:
    """Leave for an appliance of the same site, or None where the label forbids it."""
    return SiteClearance(label) if label is Privacy.SITE or label is Privacy.ANY else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Labels as configured.

    Attributes:
        default: Of requests whose key and model have none.
        models: By model name.
    """

    default: Privacy = Privacy.ANY
    models: Mapping[str, Privacy] = field(default_factory=dict)

    def model(self, names: Iterable[str]) -> Privacy | None:
        """The strictest label that any of a model's names has; None without one."""
        return min((self.models[name] for name in names if name in self.models), default=None)

    def strictest(self, *labels: Privacy | None) -> Privacy:
        """Of the labels that are there; the default if none is."""
        return min((label for label in labels if label is not None), default=self.default)


def labels_by_name(entries: Iterable[str]) -> Mapping[str, Privacy]:
    """Labels from settings such as "medical=private"; the strictest where a name comes twice.

    Raises:
        ValueError: An entry has another form, or names no label.
    """
    found: dict[str, Privacy] = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator or not name.strip():
            raise ValueError(f"{entry[:80]!r} is not of the form NAME=LABEL, such as 'medical=private'")
        label = privacy_of(value)
        found[name.strip()] = min(label, found.get(name.strip(), label))
    return found
