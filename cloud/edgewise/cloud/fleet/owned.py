"""Finds rows of an actor's own tenant; those of others are as if they were not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.db.tables import Device
from edgewise.core.errors import NotFound

CHUNK = 400
"""Values of one IN clause: databases bound how many variables a statement has."""


def find_device(session: Session, actor: Actor, uid: str, *, lock: bool = False) -> Device:
    """A device of the actor's fleet; `lock` for one that is about to change.

    Raises:
        NotFound: There is none of this name, or it was retired.
    """
    query = select(Device).where(Device.uid == uid, Device.tenant_id == actor.tenant, Device.retired_at.is_(None))
    device = session.scalars(query.with_for_update(key_share=True) if lock else query).first()
    if device is None:
        raise NotFound(f"There is no device {uid[:64]!r} in this fleet.", param="uid")
    return device


def find_devices(session: Session, actor: Actor, uids: Sequence[str]) -> list[Device]:
    """All of them, in the order of `uids`, each once.

    Raises:
        NotFound: One is not there; the message names it.
    """
    wanted = list(dict.fromkeys(uids))
    found: dict[str, Device] = {}
    for some in chunks(wanted):
        query = select(Device).where(
            Device.uid.in_(some), Device.tenant_id == actor.tenant, Device.retired_at.is_(None)
        )
        found.update((device.uid, device) for device in session.scalars(query))
    for uid in wanted:
        if uid not in found:
            raise NotFound(f"There is no device {uid[:64]!r} in this fleet.", param="uid")
    return [found[uid] for uid in wanted]


def chunks(items: Sequence[str]) -> Iterator[Sequence[str]]:
    """In pieces that fit one statement."""
    for begin in range(0, len(items), CHUNK):
        yield items[begin : begin + CHUNK]
