"""Commands of a device with their timeline, its logs, and receipts of what it answered; pages of one command and one batch."""

from __future__ import annotations

import json
from typing import Any

from edgewise.cloud.console.design import COMMAND_STATES, word_of
from edgewise.cloud.console.parts import (
    Column,
    Field,
    Table,
    Tag,
    TimeAgo,
    button,
    empty,
    facts,
    notice,
    page_head,
    panel,
    redraw,
    state,
)
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import plural, pretty, span
from edgewise.cloud.fleet import views
from edgewise.wire.fleet import ENDED

PAGE = 50
COLUMNS = (
    Column("op", "Command", "link"),
    Column("state", "State", "state"),
    Column("at", "Made", "time"),
    Column("took", "Took", "number", narrow=False),
    Column("author", "By", narrow=False),
    Column("reason", "Result", narrow=False, clip=True),
)
BATCH_COLUMNS = (Column("device", "Device", "link"), *COLUMNS[1:4], COLUMNS[5])


def command_row(command: views.CommandView, device: str = "") -> dict[str, Any]:
    progress = command.step + (f" ({command.percent:.0f} %)" if command.percent is not None else "")
    took = command.changed_at - command.created_at if command.state in ENDED else None
    return {
        "id": command.id,
        "name": device or command.op,
        "op": {"text": command.op, "href": f"/commands/{command.id}"},
        "device": {"text": device or command.uid, "href": f"/commands/{command.id}"},
        "state": word_of(COMMAND_STATES, command.state).cell(progress if command.state not in ENDED else ""),
        "at": command.created_at,
        "took": None if took is None else span(took),
        "author": command.author,
        "reason": command.reason or (json.dumps(command.result, ensure_ascii=False) if command.result else ""),
    }


async def build_commands(visit: Visit, device: views.DeviceDetail) -> None:
    with Tag("div", cls="stack"):
        if visit.may("operator"):
            _command_form(visit, device)
        with panel("Commands", body=False):
            table = Table("Commands of this device", COLUMNS)
            nothing = Tag("div")

    async def refresh(_: set[str] | None) -> None:
        found = await visit.fleet.commands.commands(visit.actor, uid=device.uid, limit=PAGE)
        table.show([command_row(command) for command in found.items])
        table.visible = bool(found.items)
        redraw(nothing, lambda: None if found.items else empty(
            "terminal", "No command yet", "Send one above; it waits until the device is there."))  # fmt: skip

    await refresh(None)
    visit.watch(("command",), refresh)


def _command_form(visit: Visit, device: views.DeviceDetail) -> None:
    ops = [op for op in device.birth.get("ops") or () if op not in ("infer", "logs")] or ["ping", "restart"]
    with panel("Send a command"), Tag("div", cls="line", style="align-items:flex-end"):
        op = Field("Command", ops[0], kind="select", options=[(name, name) for name in ops])
        args = Field("Arguments (JSON)", "{}", kind="code", rows=1).classes("grow")

        async def send() -> None:
            try:
                given = json.loads(args.text or "{}")
            except ValueError as error:
                args.fault(f"This is not JSON: {error}")
                return
            args.fault("" if isinstance(given, dict) else "Arguments are a JSON object.")
            if isinstance(given, dict):
                name = str(op.value)
                await visit.act(
                    lambda me: visit.fleet.commands.send(me, [device.uid], name, given), f"{name} was sent."
                )

        button("Send", send, icon_name="send", tone="primary")


async def build_logs(visit: Visit, device: views.DeviceDetail) -> None:
    command_id = ""
    with panel("Logs of the device"):
        with Tag("div", cls="line", style="align-items:flex-end"):
            lines = Field("Lines", "200", kind="number")
            if visit.may("operator"):
                button("Fetch", lambda: fetch(), icon_name="download", tone="primary")
            how = Tag("div", cls="line")
        box = Tag("div", style="margin-top:12px")

    async def fetch() -> None:
        nonlocal command_id
        count = lines.number()
        if not count or not 1 <= count <= 5000:
            lines.fault("Between 1 and 5000 lines.")
            return
        sent = await visit.act(lambda me: visit.fleet.commands.send(me, [device.uid], "logs", {"lines": int(count)}))
        if sent:
            command_id = sent[0].id
            await refresh(None)

    async def refresh(ids: set[str] | None) -> None:
        nonlocal command_id
        if not command_id:
            page_ = await visit.fleet.commands.commands(visit.actor, uid=device.uid, limit=PAGE)
            command_id = next((command.id for command in page_.items if command.op == "logs"), "")
        if not command_id:
            redraw(
                box,
                lambda: empty(
                    "subject", "No log fetched yet", "Fetch the last lines; the device sends them when it is there."
                ),
            )
            return
        if ids is not None and command_id not in ids:
            return
        command = await visit.fleet.commands.command(visit.actor, command_id)
        text = "\n".join(await visit.fleet.commands.log(visit.actor, command_id))
        redraw(how, lambda: _log_head(command))
        redraw(box, lambda: Tag("pre", text, "log", tabindex="0", role="region", aria_label="Log") if text else None)

    await refresh(None)
    visit.watch(("command", "log"), refresh)


def _log_head(command: views.CommandView) -> None:
    state(word_of(COMMAND_STATES, command.state), badge=True, note=command.reason)
    if command.reason:
        Tag("span", command.reason, "muted")
    TimeAgo(command.created_at)


async def build_receipts(visit: Visit, device: views.DeviceDetail) -> None:
    with panel("Receipts", body=False):
        place = Tag("div")

    async def refresh(_: set[str] | None) -> None:
        found = await visit.fleet.commands.commands(visit.actor, uid=device.uid, limit=200)
        receipts = [c for c in found.items if c.result and c.result.get("edgewise")]
        redraw(place, lambda: _receipts(receipts), key=[c.id for c in receipts])

    await refresh(None)
    visit.watch(("command",), refresh)


def _receipts(commands: list[views.CommandView]) -> None:
    if not commands:
        empty(
            "receipt",
            "No receipt yet",
            "Each answer that this device gives through the fleet, as in Chat, says here where it ran, why, and what it cost.",
        )
        return
    with Tag("ul", cls="events"):
        for command in commands:
            assert command.result is not None
            receipt = command.result["edgewise"]
            with Tag("li"):
                state(word_of(COMMAND_STATES, command.state))
                with Tag("div"):
                    Tag("div", receipt_line(receipt))
                    with Tag("details"):
                        Tag("summary", "Whole receipt", "small muted")
                        Tag("pre", pretty(receipt), "log")
                TimeAgo(command.created_at)


def receipt_line(receipt: Any) -> str:
    """Where each stage ran, in one line."""
    stages = receipt.get("stages") if isinstance(receipt, dict) else None
    return "; ".join(_stage_text(stage) for stage in stages or () if isinstance(stage, dict)) or "no stage is named"


def _stage_text(stage: dict[str, Any]) -> str:
    speed, first = stage.get("tokens_per_s"), stage.get("ttft_ms")
    parts = [f"{stage.get('stage', 'stage')}: {stage.get('where', 'unknown')}"]
    parts += [f"first token after {first:.0f}\u00a0ms"] if first is not None else []
    parts += [f"{speed:.1f} tokens/s"] if speed is not None else []
    return ", ".join(parts)


@page("/commands/{command_id}", "Command", section="/devices")
async def command_page(visit: Visit, command_id: str) -> None:
    command = await visit.fleet.commands.command(visit.actor, command_id)
    names = await visit.names([command.uid])
    with page_head(command.op) as (under, actions):
        pass
    with under:
        Tag("a", names.get(command.uid, command.uid), href=f"/devices/{command.uid}/commands")
        Tag("code", command.id)
    place = Tag("div", cls="stack")

    async def cancel() -> None:
        await visit.act(
            lambda me: visit.fleet.commands.cancel(me, command_id), "Asked for an end; the state says what happens."
        )

    async def refresh(ids: set[str] | None) -> None:
        if ids is None or command_id in ids:
            now = await visit.fleet.commands.command(visit.actor, command_id)
            redraw(place, lambda: _command(now))
            redraw(actions, lambda: button("Cancel the command", cancel, tone="danger")
                   if now.state not in ENDED and visit.may("operator") else None, key=now.state in ENDED)  # fmt: skip

    await refresh(None)
    visit.watch(("command",), refresh)


def _command(command: views.CommandView) -> None:
    if command.reason:
        bad = command.state in ("failed", "rejected", "timed-out", "expired")
        text = command.reason + (" It can be tried again." if command.retryable else "")
        notice("bad" if bad else "info", text, "error" if bad else "info")
    with Tag("div", cls="columns"):
        with panel("Timeline"), Tag("ol", cls="timeline"):
            for step in command.steps:
                with Tag("li"):
                    state(word_of(COMMAND_STATES, step.state))
                    progress = f" {step.percent:.0f} %" if step.percent is not None else ""
                    Tag("span", (step.step + progress) or step.reason, "muted")
                    TimeAgo(step.at)
        with panel("Command"):
            facts([("State", word_of(COMMAND_STATES, command.state).word), ("By", command.author),
                   ("Arguments", json.dumps(command.args, ensure_ascii=False)), ("Code", command.code)])  # fmt: skip
    if command.result is not None:
        with panel("Result"):
            Tag("pre", pretty(command.result), "log", tabindex="0", role="region", aria_label="Result")


@page("/batches/{batch_id}", "Batch", section="/devices")
async def batch_page(visit: Visit, batch_id: str) -> None:
    with page_head("Command to several devices") as (under, _):
        pass
    with panel("Devices", body=False):
        table = Table("Devices of this batch", BATCH_COLUMNS)
        foot = Tag("div", cls="table-foot")
    places: list[str | None] = [None]
    after: str | None = None

    async def refresh(_: set[str] | None) -> None:
        nonlocal after
        found = await visit.fleet.commands.commands(visit.actor, batch_id=batch_id, limit=PAGE, after=places[-1])
        names = await visit.names([command.uid for command in found.items])
        table.show([command_row(command, names.get(command.uid, command.uid)) for command in found.items])
        after = found.after
        if found.items:
            under.text = f"{found.items[0].op}, {plural(found.total, 'device')}, by {found.items[0].author}"
        redraw(foot, ends, key=(len(places), after))

    def ends() -> None:
        with Tag("div", cls="end"):
            button("Previous", previous, little=True, disabled=len(places) == 1)
            button("Next", next_, little=True, disabled=after is None)

    async def previous() -> None:
        places.pop()
        await refresh(None)

    async def next_() -> None:
        places.append(after)
        await refresh(None)

    await refresh(None)
    visit.watch(("command",), refresh)
