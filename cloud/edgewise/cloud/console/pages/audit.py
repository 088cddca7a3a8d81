"""Audit: who did what, before and after, newest first; whether the chain is whole; and an export."""

from __future__ import annotations

import json
from typing import Any

from edgewise.cloud.console.parts import (
    Column,
    Field,
    Table,
    Tag,
    button,
    empty,
    link_button,
    notice,
    page_head,
    panel,
    redraw,
)
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import differences, number, plural, value_text
from edgewise.cloud.fleet import views
from edgewise.core.errors import NotPermitted

PAGE = 50
COLUMNS = (
    Column("number", "No.", "number", narrow=False),
    Column("at", "When", "time"),
    Column("actor", "Who"),
    Column("via", "How", narrow=False),
    Column("action", "Did"),
    Column("target", "To", "mono", narrow=False, clip=True),
    Column("change", "Change", wrap=True),
)


@page("/audit", "Audit")
async def audit(visit: Visit) -> None:
    with page_head("Audit") as (under, actions):
        pass
    places: list[str | None] = [None]
    after: str | None = None
    with Tag("div", cls="stack"):
        chain = Tag("div")
        chain.visible = False
        with panel("", body=False):
            with Tag("div", cls="panel-head"):
                target = Field(
                    "Target", kind="search", bare=True, throttle=0.3, on_change=lambda: first(),
                    placeholder="Of one target: a device's uid, a rollout's id, a user's name",
                ).classes("grow")  # fmt: skip
            table = Table("Audit log", COLUMNS)
            nothing = Tag("div")
            foot = Tag("div", cls="table-foot")

    async def verify() -> None:
        wrong = await visit.act(lambda me: _verified(visit, me))
        if wrong is not None:
            chain.visible = True
            redraw(chain, lambda: notice("ok", "The chain is whole: no line was changed or taken away.", "verified")
                   if not wrong else notice("bad", f"The chain is broken: {wrong}", "gpp_bad"))  # fmt: skip

    async def show() -> None:
        nonlocal after
        try:
            found = await visit.fleet.audit.entries(
                visit.actor, target=target.text or None, limit=PAGE, after=places[-1]
            )
        except NotPermitted as error:
            why = error.message
            redraw(nothing, lambda: empty("lock", "The audit log is not yours to read", why))
            table.visible = foot.visible = False
            return
        after = found.after
        under.text = plural(found.total, "entry", "entries")
        table.show([_row(entry) for entry in found.items])
        table.visible = bool(found.items)
        redraw(
            nothing,
            lambda: (
                None
                if found.items
                else empty("receipt_long", "No entry", "Every change that somebody makes is kept here.")
            ),
        )
        redraw(foot, lambda: _paging(len(places), after is not None, previous, next_))

    async def first() -> None:
        nonlocal places
        places = [None]
        await show()

    async def previous() -> None:
        places.pop()
        await show()

    async def next_() -> None:
        places.append(after)
        await show()

    await show()
    with actions:
        button("Verify the chain", verify, icon_name="verified")
        link_button("Export", "/console/audit.jsonl", icon_name="download")


async def _verified(visit: Visit, me: Any) -> str:
    """What is wrong with the chain, "" if nothing is."""
    return await visit.fleet.audit.verify(me) or ""


def _paging(page_number: int, more: bool, previous: Any, next_: Any) -> None:
    Tag("span", f"Page {number(page_number)}")
    with Tag("div", cls="end"):
        button("Newer", previous, little=True, icon_name="chevron_left", disabled=page_number == 1)
        button("Older", next_, little=True, icon_name="chevron_right", disabled=not more)


def _row(entry: views.AuditView) -> dict[str, Any]:
    return {
        "id": str(entry.number),
        "name": entry.action,
        "number": str(entry.number),
        "at": entry.at,
        "actor": entry.actor,
        "via": entry.via,
        "action": entry.action,
        "target": entry.target,
        "change": _change(entry),
    }


def _change(entry: views.AuditView) -> str:
    """What became of what, in one line of at most some hundred characters."""
    if entry.before is None and entry.after is None:
        return ""
    lines = [line for line in differences(entry.after or {}, entry.before or {}) if line.word != "same"]
    said = []
    for line in lines:
        if line.word == "only desired":
            said.append(f"{line.path}: {_short(line.left)}")
        elif line.word == "only reported":
            said.append(f"{line.path} removed")
        else:
            said.append(f"{line.path}: {_short(line.right)} \u2192 {_short(line.left)}")
    return "; ".join(said)[:300] or json.dumps(entry.after, ensure_ascii=False)[:300]


def _short(value: Any) -> str:
    text = value_text(value)
    return text if len(text) <= 60 else text[:57] + "..."
