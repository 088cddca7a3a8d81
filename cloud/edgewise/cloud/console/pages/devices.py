"""Devices: one page of a table at a time, found by the query language, sorted and cut by the server; actions on several."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from edgewise.cloud.console import bulk
from edgewise.cloud.console.design import DEVICE_STATES, word_of
from edgewise.cloud.console.parts import (
    Column,
    Field,
    Table,
    Tag,
    ask,
    button,
    dialog,
    empty,
    icon,
    label_texts,
    link_button,
    no_device,
    page_head,
    redraw,
)
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit, uid_query
from edgewise.cloud.console.words import gauge_of, memory_share, memory_tone, number, plural
from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.core.errors import EdgewiseError, InvalidRequest

PAGE = 50
COLUMNS = (
    Column("device", "Device", "link", sort="name"),
    Column("state", "State", "state", sort="state"),
    Column("seen", "Last seen", "time", sort="seen"),
    Column("tokens", "Tokens/s", "number", narrow=False),
    Column("memory", "Memory", "meter", narrow=False),
    Column("temperature", "Temp.", "number", narrow=False),
    Column("alerts", "Alerts", "number", narrow=False),
    Column("models", "Models", narrow=False, clip=True),
    Column("version", "Version", "number", sort="version", narrow=False),
    Column("labels", "Labels", "chips", narrow=False, clip=True),
)


GROUP_COLUMNS = (
    Column("group", "Group", "link"),
    Column("query", "Filter", "mono", clip=True),
    Column("count", "Devices now", "number"),
    Column("author", "By", narrow=False),
    Column("does", "Actions", "actions"),
)


@page("/devices", "Devices")
async def devices(visit: Visit) -> None:
    await DevicesPage(visit).build()


class DevicesPage:
    """Query, sort, place and selection of one open page."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.query = visit.request.query_params.get("query", "")[:1000]
        self.sort = visit.request.query_params.get("sort", "name")[:40]
        self.before: list[str | None] = []  # places of the pages before this one
        self.after: str | None = None
        self.picked: list[str] = []
        self.saved: Mapping[str, views.GroupView] = {}  # groups by name
        self.shown: views.Page[views.DeviceView] = views.Page(items=(), total=0)
        self._turn = 0  # of the newest question: an answer to an older one is dropped

    async def build(self) -> None:
        with page_head("Devices") as (self.under, actions), actions:
            if self.visit.may("operator"):
                button("Groups", self.show_groups, icon_name="bookmarks")
            if self.visit.may("admin"):
                link_button("Add a device", "/people#claim-codes", icon_name="add", tone="primary")
        with Tag("section", cls="panel", aria_label="Devices"):
            with Tag("div", cls="panel-head"):
                with Tag("div", cls="grow"):
                    self.search = Field(
                        "Filter devices", self.query, kind="search", bare=True, throttle=0.15, on_change=self.typed,
                        placeholder="Filter: name, state:offline, model:smollm2 AND site:lyon, NOT version:0.1.0",
                    )  # fmt: skip
                self.groups = Tag("div")
                self.states = Tag("div", cls="line")
            self.bar = Tag("div")
            self.table = Table("Devices", COLUMNS, sort=self.sort, on_sort=self.sorted,
                               on_pick=self.pick if self.visit.may("operator") else None)  # fmt: skip
            self.nothing = Tag("div")
            self.foot = Tag("div", cls="table-foot")
        await self.refresh_groups()
        await self.load()
        self.visit.watch(("device", "telemetry", "alert"), self.changed)

    # --- what is shown ---

    async def load(self) -> None:
        """Asks for the page that is due, and shows it unless another was asked for meanwhile."""
        self._turn += 1
        turn, place = self._turn, self.before[-1] if self.before else None
        try:
            shown = await self.visit.fleet.registry.devices(
                self.visit.actor, self.query, sort=self.sort, limit=PAGE, after=place
            )
            counts = await self.visit.fleet.registry.counts(self.visit.actor, self.query)
        except InvalidRequest as error:
            if turn == self._turn:
                self.search.fault(error.message)
            return
        if turn != self._turn:
            return
        self.search.fault("")
        self.shown, self.after = shown, shown.after
        self.table.show([_row(device) for device in shown.items])
        redraw(self.states, lambda: self._state_links(counts), key=(self.query, *sorted(counts.items())))
        self._show_ends()

    def _show_ends(self) -> None:
        total = self.shown.total
        self.under.text = plural(total, "device") + (" match" if self.query and total != 1 else "")
        self.table.visible = self.foot.visible = bool(self.shown.items)
        redraw(
            self.nothing,
            self._nothing if not self.shown.items else lambda: None,
            key=bool(self.shown.items) or self.query,
        )
        redraw(self.foot, self._paging, key=(total, len(self.before), self.after))
        self._show_bar()

    def _show_bar(self) -> None:
        redraw(self.bar, self._bar, key=(self.shown.total, self.query, *self.picked))

    def _nothing(self) -> None:
        if self.query:
            empty(
                "search_off",
                "No device matches",
                "Check the query, or clear it to see all. Fields: name, uid, state, model, version, and every label.",
            )
        else:
            no_device(self.visit.may("admin"), self.visit.address)

    def _paging(self) -> None:
        first = len(self.before) * PAGE
        items = len(self.shown.items)
        Tag("span", f"{number(first + 1)}\u2013{number(first + items)} of {number(self.shown.total)}" if items else "")
        with Tag("div", cls="end"):
            button("Previous", self.previous, little=True, icon_name="chevron_left", disabled=not self.before)
            button("Next", self.next, little=True, icon_name="chevron_right", disabled=self.after is None)

    def _state_links(self, counts: Mapping[str, int]) -> None:
        for name, word in DEVICE_STATES.items():
            if counts.get(name):
                with Tag("a", cls=f"state tone-{word.tone}", href=f"/devices?query={quote(self._with_state(name))}",
                         title=f"Only {word.word.lower()}"):  # fmt: skip
                    icon(word.icon)
                    Tag("span", number(counts[name]), "num")
                    Tag("span", word.word, "visually-hidden")

    def _with_state(self, name: str) -> str:
        return f"({self.query}) AND state:{name}" if self.query and "state:" not in self.query else f"state:{name}"

    def _bar(self) -> None:
        if not self.picked:
            return
        with Tag("div", cls="picked-bar", role="group", aria_label="Selected devices"):
            Tag("strong", f"{plural(len(self.picked), 'device')} selected")
            if len(self.picked) < self.shown.total:
                button(f"Select all {number(self.shown.total)}", self.pick_all, little=True, tone="quiet")
            button("Clear", lambda: self.pick([]), little=True, tone="quiet")
            Tag("span", cls="grow")
            for action in bulk.ACTIONS:
                button(action.label, self._sender(action), little=True, icon_name=action.icon)
            button("Label", self.label, little=True, icon_name="label")
            link_button(
                "Rollout", f"/rollouts/new?query={quote(self._picked_query())}", icon_name="stacked_line_chart"
            ).classes("little")

    def _picked_query(self) -> str:
        """As a rollout can name them; too many to name are named by the filter."""
        query = uid_query(self.picked)
        return query if len(query) <= 1900 else self.query

    # --- what the person does ---

    async def typed(self) -> None:
        self.query, self.before = self.search.text[:1000], []
        self._remember()
        await self.load()

    async def sorted(self, sort: str) -> None:
        self.sort, self.before = sort, []
        self.table.set_sort(sort)
        self._remember()
        await self.load()

    def _remember(self) -> None:
        """In the address, so that a reload or a link shows the same."""
        address = f"/devices?query={quote(self.query)}&sort={quote(self.sort)}"
        self.visit.client.run_javascript(f"history.replaceState(null, '', {json.dumps(address)})")

    async def next(self) -> None:
        if self.after is not None:
            self.before.append(self.after)
            await self.load()

    async def previous(self) -> None:
        if self.before:
            self.before.pop()
            await self.load()

    def pick(self, uids: list[str]) -> None:
        self.picked = uids
        self.table.set_picked(uids)
        self._show_bar()

    async def pick_all(self) -> None:
        uids = await self.visit.act(lambda me: self.visit.fleet.registry.uids(me, self.query))
        if uids is not None:
            self.pick(list(uids))

    def _sender(self, action: bulk.Action) -> Any:
        async def send() -> None:
            await bulk.send(self.visit, action, self.picked)

        return send

    async def label(self) -> None:
        if await bulk.set_label(self.visit, self.picked):
            self.pick([])
            await self.load()

    async def show_groups(self) -> None:
        """Saved queries: those that there are, and the filter of now as a new one."""
        with dialog("Groups", wide=True) as (box, foot):
            Tag("p", "A group is a saved filter; whatever matches it belongs to it. Filters, rollouts and alerts can name it: "
                "group:NAME", "muted")  # fmt: skip
            table = Table("Groups", GROUP_COLUMNS, on_action=lambda name, _: self._delete_group(name, show))
            with Tag("div", cls="fields"):
                name = Field("Name of a new group", hint="Letters, digits, and . / - _ between.")
                query = Field("Its filter", self.query, placeholder="site:lyon AND ring:canary")

            async def show() -> None:
                self.saved = {group.name: group for group in await self.visit.fleet.registry.groups(self.visit.actor)}
                table.show([_group_row(group) for group in self.saved.values()])
                table.visible = bool(self.saved)

            async def save() -> None:
                name.fault("" if name.text else "Name the group.")
                query.fault("" if query.text else "Say which devices: an empty filter would be every device.")
                if not name.text or not query.text:
                    return
                done = f"Group {name.text} saved."
                saved = await self.visit.act(
                    lambda me: self.visit.fleet.registry.save_group(me, name.text, query.text), done
                )
                if saved is not None:
                    await show()

            with foot:
                button("Close", lambda: box.submit(True))
                button("Save the group", save, tone="primary")
        await show()
        await box
        box.delete()
        await self.refresh_groups()

    async def _delete_group(self, name: str, show: Callable[[], Awaitable[None]]) -> None:
        text = f"Its filter was {self.saved[name].query}. What names the group finds nothing from now on; no device changes."

        async def delete(me: Actor) -> bool:
            await self.visit.fleet.registry.delete_group(me, self.saved[name].id)
            return True

        if await ask(f"Delete the group {name}?", text, "Delete") and await self.visit.act(delete):
            await show()

    async def refresh_groups(self) -> None:
        groups = await self.visit.fleet.registry.groups(self.visit.actor)
        options = [("", "All devices"), *((group.query, f"{group.name} ({number(group.count)})") for group in groups)]
        redraw(self.groups, lambda: self._group_picker(options) if groups else None, key=options)

    def _group_picker(self, options: Sequence[tuple[str, str]]) -> None:
        chosen = self.query if self.query in dict(options) else ""
        picker = Field("Group", chosen, kind="select", options=options, bare=True)

        def choose() -> None:
            self.search.value = str(picker.value)

        picker.on_value_change(choose)

    # --- what changes meanwhile ---

    async def changed(self, ids: set[str] | None) -> None:
        """A refresh if something that is shown has changed, or if devices may have come or gone."""
        here = {device.uid for device in self.shown.items}
        if ids is None or ids & here or self.shown.total < PAGE:
            try:
                await self.load()
            except EdgewiseError as error:
                self.visit.complain(error.message)


def _row(device: views.DeviceView) -> dict[str, Any]:
    gauges = device.gauges
    return {
        "id": device.uid,
        "name": device.name or device.uid,
        "device": {"text": device.name or device.uid, "href": f"/devices/{device.uid}"},
        "state": word_of(DEVICE_STATES, device.state).cell(device.state_reason),
        "seen": device.seen_at,
        "tokens": f"{gauges['tokens_per_s']:.1f}" if "tokens_per_s" in gauges else None,
        "memory": _memory(gauges),
        "temperature": gauge_of("temperature_c").text(gauges["temperature_c"]) if "temperature_c" in gauges else None,
        "alerts": number(device.alerts) if device.alerts else None,
        "models": ", ".join(str(model.get("name", "")) for model in device.models),
        "version": device.version,
        "labels": label_texts(device.labels),
    }  # fmt: skip


def _group_row(group: views.GroupView) -> dict[str, Any]:
    return {"id": group.name, "name": group.name, "query": group.query, "count": number(group.count), "author": group.author,
            "group": {"text": group.name, "href": f"/devices?query={quote(f'group:{group.name}')}"},
            "does": [{"action": "delete", "label": "Delete", "tone": "danger"}]}  # fmt: skip


def _memory(gauges: Mapping[str, float]) -> dict[str, Any] | None:
    share = memory_share(gauges)
    return None if share is None else {"share": share, "text": f"{100 * share:.0f} %", "tone": memory_tone(share)}
