"""Groups: saved queries. Their members are whatever matches when they are used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.audit import record
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Device, Group
from edgewise.cloud.fleet.query.language import Both, Node, Not, parse
from edgewise.core.clock import Clock
from edgewise.core.errors import Conflict, InvalidRequest, NotFound
from edgewise.wire.envelope import new_ulid

_NAME = re.compile(r"[\w./-]{1,128}")


class Groups:
    """The part of the registry that keeps groups."""

    def __init__(self, db: FleetDatabase, changes: Changes, clock: Clock) -> None:
        self._db, self._changes, self._clock = db, changes, clock

    def _where(self, session: Session, actor: Actor, query: str) -> list[ColumnElement[bool]]:
        raise NotImplementedError  # the registry's

    async def groups(self, actor: Actor) -> Sequence[views.GroupView]:
        """All, by name, with how many devices match now."""

        def work(session: Session) -> list[views.GroupView]:
            rows = session.scalars(select(Group).where(Group.tenant_id == actor.tenant).order_by(Group.name))
            return [self._group_view(session, actor, row) for row in rows]

        return await self._db.read(work)

    async def save_group(self, actor: Actor, name: str, query: str) -> views.GroupView:
        """A new group, or another query for one that is there.

        Raises:
            InvalidRequest: The name is malformed, or the query cannot be read.
        """
        actor.need("operator")
        if _NAME.fullmatch(name) is None:
            message = "1 to 128 letters, digits, '_', '.', '/' or '-'"
            raise InvalidRequest(f"name: {name[:80]!r} is no name of a group: {message}.", param="name")
        now = self._clock.time()

        def work(session: Session) -> views.GroupView:
            row = _named(session, actor, name)
            before = None if row is None else {"query": row.query}
            if row is None:
                row = Group(id=new_ulid(), tenant_id=actor.tenant, name=name, created_at=now)
                session.add(row)
            row.query, row.author = query, actor.name
            session.flush()
            view = self._group_view(session, actor, row)  # also says where the query is wrong, or runs in a circle
            record(session, actor, "group.save", name, before=before, after={"query": query})
            return view

        view = await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "group", view.id))
        return view

    async def delete_group(self, actor: Actor, group_id: str) -> None:
        """Raises `Conflict` while another group names it."""
        actor.need("operator")

        def work(session: Session) -> None:
            row = session.scalars(select(Group).where(Group.id == group_id, Group.tenant_id == actor.tenant)).first()
            if row is None:
                raise NotFound(f"There is no group {group_id[:40]!r}.", param="group_id")
            for other in session.scalars(select(Group).where(Group.tenant_id == actor.tenant, Group.id != group_id)):
                if row.name in _named_by(parse(other.query)):
                    raise Conflict(f"The group {other.name!r} names {row.name!r}: change it first.", param="group_id")
            record(session, actor, "group.delete", row.name, before={"query": row.query})
            session.delete(row)

        await self._db.write(work)
        self._changes.publish(Change(actor.tenant, "group", group_id))

    def _group_view(self, session: Session, actor: Actor, row: Group) -> views.GroupView:
        where = self._where(session, actor, row.query)
        count = session.scalar(select(func.count()).select_from(Device).where(*where)) or 0
        return views.GroupView.model_validate(row).model_copy(update={"count": count})


def group_query(session: Session, actor: Actor, name: str) -> str | None:
    """The query of a group; None if there is none of this name."""
    row = _named(session, actor, name)
    return None if row is None else row.query


def _named(session: Session, actor: Actor, name: str) -> Group | None:
    return session.scalars(select(Group).where(Group.tenant_id == actor.tenant, Group.name == name)).first()


def _named_by(node: Node | None) -> set[str]:
    def walk(node: Node) -> Iterator[str]:
        if isinstance(node, Not):
            yield from walk(node.node)
        elif isinstance(node, Both):
            for one in node.nodes:
                yield from walk(one)
        elif node.field == "group":
            yield node.value.text

    return set() if node is None else set(walk(node))
