"""Overview: what needs attention first, how many devices are in which state, and what happened last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgewise.cloud.console.design import DEVICE_STATES, SEVERITIES, word_of
from edgewise.cloud.console.parts import (
    Tag,
    TimeAgo,
    empty,
    icon,
    link_button,
    no_device,
    page_head,
    panel,
    redraw,
    state,
)
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import number, plural
from edgewise.cloud.fleet import views

_SHOWN = 12
_FIRST = {"critical": 0, "warning": 1, "info": 2}


@page("/", "Overview")
async def overview(visit: Visit) -> None:
    with page_head("Overview") as (under, actions), actions:
        if visit.may("admin"):
            link_button("Add a device", "/people#claim-codes", icon_name="add")
    with Tag("div", cls="stack"):
        counts = Tag("div")
        with Tag("div", cls="columns"):
            with Tag("div", cls="stack"):
                with panel("Needs attention", body=False) as end:
                    attention = Tag("div")
                with end:
                    Tag("a", "All alerts", href="/alerts")
            with panel("Recent events", body=False):
                events = Tag("div")

    async def refresh_counts(_: set[str] | None) -> None:
        found = await visit.fleet.registry.counts(visit.actor)
        redraw(counts, lambda: _counts(found, visit), key=sorted(found.items()))
        under.text = plural(sum(found.values()), "device")

    async def refresh_attention(_: set[str] | None) -> None:
        alerts = await visit.fleet.alerts.alerts(visit.actor, limit=100)
        keys = await visit.fleet.enrolment.keys(visit.actor, state="pending")
        first = sorted(alerts.items, key=lambda a: (bool(a.acknowledged_by), _FIRST.get(a.severity, 3), -a.raised_at))[
            :_SHOWN
        ]
        names = await visit.names([alert.uid for alert in first])
        seen = [(alert.id, alert.message, alert.acknowledged_by) for alert in first]
        drawn = (seen, alerts.total, [key.id for key in keys], sorted(names.items()))
        redraw(attention, lambda: _attention(first, alerts.total, keys, names), key=drawn)

    async def refresh_events(_: set[str] | None) -> None:
        page_ = await visit.fleet.registry.events(visit.actor, limit=_SHOWN)
        names = await visit.names([event.uid for event in page_.items])
        redraw(events, lambda: event_list(page_.items, names), key=[event.id for event in page_.items])

    for kinds, refresh in (
        (("device",), refresh_counts),
        (("alert", "key"), refresh_attention),
        (("event",), refresh_events),
    ):
        await refresh(None)
        visit.watch(kinds, refresh)


def _counts(counts: Mapping[str, int], visit: Visit) -> None:
    total = sum(counts.values())
    if not total:
        with Tag("div", cls="panel"):
            no_device(visit.may("admin"), visit.address)
        return
    with Tag("div", cls="tiles"):
        for name, word in DEVICE_STATES.items():
            count = counts.get(name, 0)
            with Tag("a", cls="tile", href=f"/devices?query=state:{name}"):
                with Tag("div", cls="name"):
                    icon(word.icon, f"tone-{word.tone}" if count else "")
                    Tag("span", word.word)
                Tag("div", number(count), "figure")
    with Tag("div", cls="statebar", style="margin-top:8px", role="img", aria_label=_shares(counts, total)):
        for name, word in DEVICE_STATES.items():
            if counts.get(name):
                Tag("span", cls=f"bar-{word.tone}", style=f"flex:{counts[name]}")


def _shares(counts: Mapping[str, int], total: int) -> str:
    return "Share of devices: " + ", ".join(
        f"{word.word} {100 * counts.get(name, 0) / total:.0f} %" for name, word in DEVICE_STATES.items()
    )


def _attention(
    alerts: Sequence[views.AlertView], total: int, keys: Sequence[views.KeyView], names: Mapping[str, str]
) -> None:
    if not alerts and not keys:
        empty("task_alt", "Nothing needs you", "No alert is open and no device waits to be accepted.")
        return
    with Tag("ul", cls="events"):
        if keys:
            with Tag("li"):
                state(SEVERITIES["warning"])
                Tag("a", f"{plural(len(keys), 'device waits', 'devices wait')} to be accepted", href="/people#keys")
                TimeAgo(min(key.created_at for key in keys))
        for alert in alerts:
            with Tag("li"):
                state(word_of(SEVERITIES, alert.severity))
                with Tag("span"):
                    if alert.uid:
                        Tag("a", names.get(alert.uid, alert.uid), href=f"/devices/{alert.uid}")
                        Tag("span", ": ")
                    Tag("span", alert.message)
                    if alert.acknowledged_by:
                        Tag("span", f" (seen by {alert.acknowledged_by})", "muted")
                TimeAgo(alert.raised_at)
    if total > len(alerts):
        with Tag("div", cls="table-foot"):
            Tag("a", f"{number(total - len(alerts))} more", href="/alerts")


def event_list(events: Sequence[views.EventView], names: Mapping[str, str]) -> None:
    """Events, newest first; with the device's name where `names` has it."""
    if not events:
        empty(
            "event_note", "No event yet", "Devices coming and going, loaded models and what a governor did appear here."
        )
        return
    with Tag("ul", cls="events"):
        for event in events:
            with Tag("li"):
                state(word_of(SEVERITIES, event.severity))
                with Tag("span"):
                    if event.uid and event.uid in names:
                        Tag("a", names[event.uid], href=f"/devices/{event.uid}")
                        Tag("span", ": ")
                    Tag("span", event.message or event.kind)
                TimeAgo(event.at)
