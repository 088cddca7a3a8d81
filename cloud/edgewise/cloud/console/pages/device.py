"""One device: its figures live, what is desired and reported, its models, its commands, logs and receipts, and a chat with it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from edgewise.cloud.console import bulk
from edgewise.cloud.console.design import DEVICE_STATES, KEY_STATES, word_of
from edgewise.cloud.console.pages.device_chat import build_chat
from edgewise.cloud.console.pages.device_now import build_now
from edgewise.cloud.console.pages.device_shadows import build_shadows
from edgewise.cloud.console.pages.device_work import build_commands, build_logs, build_receipts
from edgewise.cloud.console.pages.overview import event_list
from edgewise.cloud.console.parts import (
    Column,
    Field,
    LineChart,
    Table,
    Tag,
    TimeAgo,
    ask,
    button,
    chips,
    dialog,
    empty,
    facts,
    notice,
    panel,
    redraw,
    state,
)
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import PLAIN, gauge_of, size, span
from edgewise.cloud.fleet import views
from edgewise.core.errors import NotFound

Tab = Callable[[Visit, views.DeviceDetail], Awaitable[None]]
SPANS = ((900, "15 minutes"), (3600, "1 hour"), (6 * 3600, "6 hours"), (86400, "1 day"), (7 * 86400, "7 days"))
MODEL_COLUMNS = (
    Column("model", "Model"),
    Column("state", "State", "state"),
    Column("role", "Role", narrow=False),
    Column("size", "Size", "number"),
    Column("digest", "Digest", "mono", narrow=False, clip=True),
    Column("does", "Actions", "actions"),
)


async def build_overview(visit: Visit, device: views.DeviceDetail) -> None:
    with Tag("div", cls="stack"):
        if device.state != "online" and device.state_reason:
            notice(word_of(DEVICE_STATES, device.state).tone, device.state_reason)
        await build_now(visit, device)
        await _charts(visit, device)
        with Tag("div", cls="columns"):
            with panel("Recent events", body=False):
                events = Tag("div")
            with Tag("div", cls="stack"):
                with panel("Hardware and software"):
                    facts(_hardware(device))
                with panel("Keys"):
                    _keys(device.keys)
                if device.notes:
                    with panel("Notes"):
                        Tag("p", device.notes, style="white-space:pre-wrap")

    async def refresh(_: set[str] | None) -> None:
        found = await visit.fleet.registry.events(visit.actor, device.uid, limit=20)
        redraw(events, lambda: event_list(found.items, {}))

    await refresh(None)
    visit.watch(("event",), refresh)


async def _charts(visit: Visit, device: views.DeviceDetail) -> None:
    names = await visit.fleet.telemetry.names(visit.actor, device.uid)
    if not names:
        with Tag("div", cls="panel"):
            empty(
                "monitoring",
                "No telemetry yet",
                "Charts appear with the first samples, some seconds after the device is online.",
            )
        return
    shown = [name for name in PLAIN if name in names] or list(names)[:8]
    options = [(str(seconds), text) for seconds, text in SPANS]
    with Tag("div", cls="line"):
        Tag("h2", "Telemetry", "grow")
        chosen = Field("Span", "3600", kind="select", options=options, bare=True)
        every = Field("All values", False, kind="check") if len(names) > len(shown) else None
    place = Tag("div", cls="charts")
    charts: dict[str, LineChart] = {}

    def lay_out() -> None:
        charts.clear()
        place.clear()
        with place:
            for name in list(names) if every is not None and every.value else shown:
                gauge = gauge_of(name)
                charts[name] = LineChart(gauge.label, gauge.unit, gauge.digits, gauge.floor)

    async def fill() -> None:
        until = time.time()
        since = until - float(chosen.value)
        for name, chart in list(charts.items()):
            series = await visit.fleet.telemetry.series(visit.actor, device.uid, name, since=since, until=until)
            scale = gauge_of(name).scale
            chart.show([(p.at, p.mean * scale, p.least * scale, p.most * scale) for p in series.points], since, until)

    async def refresh(ids: set[str] | None) -> None:
        if ids is None or device.uid in ids:
            await fill()

    async def lay_out_and_fill() -> None:
        lay_out()
        await fill()

    await lay_out_and_fill()
    chosen.on_value_change(fill)
    if every is not None:
        every.on_value_change(lay_out_and_fill)
    visit.watch(("telemetry",), refresh)


def _hardware(device: views.DeviceDetail) -> Sequence[tuple[str, str]]:
    hardware = device.birth.get("hardware") or {}
    memory = hardware.get("memory_bytes")
    days = device.birth.get("certificate_days")
    known = {
        "Name in topics": device.uid,
        "Software": device.version,
        "Family": str(hardware.get("family", "")),
        "Processor": " ".join(str(hardware[key]) for key in ("cores", "cpu") if key in hardware),
        "Memory": size(float(memory)) if memory else "",
        "Accelerators": ", ".join(_accelerator(one) for one in hardware.get("accelerators") or ()),
        "System": str(hardware.get("os", "")),
        "Certificate": "" if days is None else f"{days:.0f} days left",
    }
    return [(name, value) for name, value in known.items() if value]


def _accelerator(one: Any) -> str:
    return str(one.get("name", one)) if isinstance(one, Mapping) else str(one)


def _keys(keys: Sequence[views.KeyView]) -> None:
    if not keys:
        Tag("p", "This device has no key of this fleet.", "muted")
    for key in keys:
        with Tag("div", cls="line"):
            state(word_of(KEY_STATES, key.state), badge=True)
            Tag("code", key.fingerprint[:16] + "\u2026", title=key.fingerprint)
            TimeAgo(key.changed_at)


async def build_models(visit: Visit, device: views.DeviceDetail) -> None:
    with panel("Models on this device", body=False):
        table = Table("Models on this device", MODEL_COLUMNS, on_action=_model_action(visit, device.uid))
        nothing = Tag("div")

    async def refresh(ids: set[str] | None) -> None:
        if ids is not None and device.uid not in ids:
            return
        now = await visit.fleet.registry.device(visit.actor, device.uid)
        table.show([_model_row(model, visit.may("operator")) for model in now.models])
        table.visible = bool(now.models)
        redraw(nothing, lambda: None if now.models else empty(
            "layers", "No model here", "Roll a model out to it; the device fetches it and loads it.",
            action=("Roll out a model", f"/rollouts/new?query=uid:{device.uid}")))  # fmt: skip

    await refresh(None)
    visit.watch(("device",), refresh)


def _model_row(model: Mapping[str, Any], acts: bool) -> dict[str, Any]:
    loaded = bool(model.get("loaded"))
    tone = {"ready": "ok", "failed": "bad"}.get(str(model.get("state", "ready")), "info")
    word = "Loaded" if loaded else str(model.get("state", "ready")).capitalize()
    does = [{"action": "model.unload" if loaded else "model.load", "label": "Unload" if loaded else "Load"},
            {"action": "model.remove", "label": "Remove", "tone": "danger"}]  # fmt: skip
    return {
        "id": model["name"],
        "model": model["name"],
        "state": {"word": word, "icon": "check_circle" if tone == "ok" else "autorenew" if tone == "info" else "error",
                  "tone": tone, "note": model.get("reason", "")},
        "role": model.get("role", ""),
        "size": size(float(model.get("bytes") or 0)) if model.get("bytes") else None,
        "digest": model.get("digest") or "",
        "does": does if acts else [],
    }  # fmt: skip


def _model_action(visit: Visit, uid: str) -> Callable[[str, str], Awaitable[None]]:
    async def act(name: str, op: str) -> None:
        if op == "model.remove" and not await ask(
            f"Remove {name}?", "Its files are deleted from the device.", "Remove"
        ):
            return
        await visit.act(
            lambda me: visit.fleet.commands.send(me, [uid], op, {"name": name}), f"{op} of {name} was sent."
        )

    return act


TABS: Mapping[str, tuple[str, Tab]] = {
    "": ("Overview", build_overview),
    "configuration": ("Configuration", build_shadows),
    "models": ("Models", build_models),
    "commands": ("Commands", build_commands),
    "chat": ("Chat", build_chat),
    "logs": ("Logs", build_logs),
    "receipts": ("Receipts", build_receipts),
}


@page("/devices/{uid}", "Device", section="/devices")
async def device_overview(visit: Visit, uid: str) -> None:
    await _device(visit, uid, "")


@page("/devices/{uid}/{tab}", "Device", section="/devices")
async def device_tab(visit: Visit, uid: str, tab: str) -> None:
    await _device(visit, uid, tab)


async def _device(visit: Visit, uid: str, tab: str) -> None:
    if tab not in TABS:
        raise NotFound(f"A device has no page {tab!r}.")
    device = await visit.fleet.registry.device(visit.actor, uid)
    visit.client.title = f"{device.name or uid} - Edgewise"
    with Tag("div", cls="page-head"):
        head = Tag("div", cls="grow")
        with Tag("div", cls="page-actions"):
            _actions(visit, device)

    async def refresh(ids: set[str] | None) -> None:
        if ids is None or uid in ids:
            now = await visit.fleet.registry.device(visit.actor, uid)
            redraw(head, lambda: _head(now))

    redraw(head, lambda: _head(device))
    visit.watch(("device",), refresh)
    with Tag("nav", cls="tabs", aria_label="This device"):
        for key, (name, _) in TABS.items():
            Tag("a", name, href=f"/devices/{uid}/{key}".rstrip("/"), aria_current="page" if key == tab else None)
    await TABS[tab][1](visit, device)


def _head(device: views.DeviceDetail) -> None:
    Tag("h1", device.name or device.uid)
    with Tag("div", cls="page-sub"):
        state(word_of(DEVICE_STATES, device.state), badge=True, note=device.state_reason)
        if device.seen_at is not None:
            with Tag("span"):
                Tag("span", "seen ")
                TimeAgo(device.seen_at)
        Tag("code", device.uid)
        chips(device.labels)
        if device.expected_until:
            Tag("span", f"expected back in {span(max(0.0, device.expected_until - time.time()))}")


def _actions(visit: Visit, device: views.DeviceDetail) -> None:
    if not visit.may("operator"):
        return

    def sender(action: bulk.Action) -> Callable[[], Awaitable[bool]]:
        return lambda: bulk.send(visit, action, [device.uid])

    for action in bulk.ACTIONS:
        button(action.label, sender(action), icon_name=action.icon)
    button("Edit", lambda: _edit(visit, device.uid), icon_name="edit")
    if visit.may("admin"):
        button("Retire", lambda: _retire(visit, device), icon_name="delete", tone="danger")


async def _edit(visit: Visit, uid: str) -> None:
    device = await visit.fleet.registry.device(visit.actor, uid)
    with dialog("Edit device") as (box, foot):
        name = Field("Name", device.name)
        labels = Field("Labels", "\n".join(f"{key}={value}" for key, value in sorted(device.labels.items())), kind="code",
                       hint="One a line: site=lyon")  # fmt: skip
        notes = Field("Notes", device.notes, kind="area")

        async def save() -> None:
            pairs = [line.partition("=") for line in labels.text.splitlines() if line.strip()]
            if any(not key.strip() or not equals for key, equals, _ in pairs):
                labels.fault("Each line is NAME=VALUE.")
                return
            new = {key.strip(): value.strip() for key, _, value in pairs}
            edit = visit.fleet.registry.edit
            done = await visit.act(
                lambda me: edit(me, uid, name=name.text, labels=new, notes=str(notes.value)), "Saved."
            )
            if done is not None:
                box.submit(True)

        with foot:
            button("Cancel", lambda: box.submit(False))
            button("Save", save, tone="primary")
    await box
    box.delete()


async def _retire(visit: Visit, device: views.DeviceDetail) -> None:
    name = device.name or device.uid
    text = f"The keys of {name} ({device.uid}) are revoked and it leaves the fleet. What it did stays in the audit log."
    if not await ask(f"Retire {name}?", text, "Retire"):
        return

    async def retire(me: Any) -> bool:
        await visit.fleet.registry.retire(me, device.uid)
        return True

    if await visit.act(retire):
        visit.client.open("/devices")
