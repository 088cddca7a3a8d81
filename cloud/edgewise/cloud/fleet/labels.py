"""Names and labels that people give to devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.db.tables import Device, DeviceLabel
from edgewise.core.errors import InvalidRequest

MAX_LABELS, MAX_TEXT = 64, 128
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")


def check_name(name: str) -> None:
    """Raises `InvalidRequest` for a name that is too long or has control characters."""
    if len(name) > MAX_TEXT or not name.isprintable():
        raise InvalidRequest(f"name: at most {MAX_TEXT} printable characters are possible.", param="name")


def check_labels(labels: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest`, naming the label."""
    if len(labels) > MAX_LABELS:
        raise InvalidRequest(f"labels: {len(labels)} of them; at most {MAX_LABELS} are possible.", param="labels")
    folded = [name.casefold() for name in labels]
    for name, value in labels.items():
        if _NAME.fullmatch(name) is None:
            message = "letters, digits, '_', '.', '/' and '-', beginning with a letter, at most 64"
            raise InvalidRequest(f"labels: {name[:70]!r} is no name: {message}.", param="labels")
        if folded.count(name.casefold()) > 1:
            raise InvalidRequest(f"labels: {name!r} is there twice, with and without capitals.", param="labels")
        text = isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()
        if not text and not isinstance(value, bool | int | float):
            raise InvalidRequest(
                f"labels: the value of {name!r} must be a text of at most {MAX_TEXT} printable characters, a number, or true "
                "or false.",
                param="labels",
            )


def set_labels(session: Session, device: Device, labels: Mapping[str, Any]) -> None:
    """All labels of a device, in its row and to be searched.

    Raises:
        InvalidRequest: As `check_labels`.
    """
    check_labels(labels)
    device.labels = dict(labels)
    session.execute(delete(DeviceLabel).where(DeviceLabel.uid == device.uid))
    for name, value in labels.items():
        text = str(value).casefold()
        session.add(DeviceLabel(uid=device.uid, name=name.casefold(), value=text[:256], number=_number(value)))


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except ValueError:
        return None
