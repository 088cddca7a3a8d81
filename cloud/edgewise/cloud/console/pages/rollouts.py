"""Rollouts: the list, one with its stages live and why a device failed, and a form to make one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgewise.cloud.console.design import ROLLOUT_STATES, Word, word_of
from edgewise.cloud.console.pages.rollout_form import RolloutForm, approve_rollout, start_rollout
from edgewise.cloud.console.pages.rollout_stages import stage_text
from edgewise.cloud.console.parts import (
    Column,
    Table,
    Tag,
    TimeAgo,
    ask,
    button,
    empty,
    facts,
    link_button,
    notice,
    page_head,
    panel,
    redraw,
    state,
)
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import GAUGES, number, plural, pretty, span
from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.rollouts.plan import RolloutPlan, Stage, read_plan
from edgewise.cloud.fleet.rollouts.service import ACTS

PAGE = 50
COLUMNS = (
    Column("rollout", "Rollout", "link"),
    Column("state", "State", "state"),
    Column("of", "Of", narrow=False),
    Column("done", "Succeeded", "meter"),
    Column("failed", "Failed", "number"),
    Column("author", "By", narrow=False),
    Column("changed", "Changed", "time", narrow=False),
)
DEVICE_COLUMNS = (
    Column("device", "Device", "link"),
    Column("stage", "Stage", "number"),
    Column("state", "State", "state"),
    Column("checks", "Measured", narrow=False),
    Column("at", "Since", "time", narrow=False),
    Column("reason", "Why", wrap=True),
)
DEVICE_STATES: Mapping[str, Word] = {
    "waiting": Word("Waiting", "schedule", "mute"),
    "trying": Word("On trial", "science", "info"),
    "changing": Word("Changing", "autorenew", "info"),
    "probing": Word("Being asked", "quiz", "info"),
    "baking": Word("Watched", "visibility", "info"),
    "succeeded": Word("Succeeded", "check_circle", "ok"),
    "failed": Word("Failed", "error", "bad"),
    "missing": Word("Away", "cloud_off", "warn"),
    "left": Word("Left out", "logout", "mute"),
    "restoring": Word("Being restored", "undo", "warn"),
    "restored": Word("Restored", "undo", "mute"),
}
_FIRST = (
    "failed",
    "restoring",
    "missing",
    "restored",
    "probing",
    "trying",
    "changing",
    "baking",
    "waiting",
    "succeeded",
    "left",
)
_ACTS = {
    "start": "Start",
    "approve": "Approve",
    "resume": "Resume",
    "pause": "Pause",
    "roll-back": "Roll back",
    "cancel": "Cancel",
}


@page("/rollouts", "Rollouts")
async def rollouts(visit: Visit) -> None:
    with page_head("Rollouts") as (under, actions), actions:
        if visit.may("operator"):
            link_button("New rollout", "/rollouts/new", icon_name="add", tone="primary")
    with panel("", body=False):
        table = Table("Rollouts", COLUMNS)
        nothing = Tag("div")

    async def refresh(_: set[str] | None) -> None:
        found = await visit.fleet.rollouts.rollouts(visit.actor, limit=PAGE)
        table.show([_row(rollout) for rollout in found.items])
        table.visible = bool(found.items)
        under.text = plural(found.total, "rollout")
        redraw(nothing, lambda: None if found.items else empty(
            "stacked_line_chart", "No rollout yet",
            "It brings a model or a setting to many devices in stages, checks each, and goes back by itself on failure.",
            action=("New rollout", "/rollouts/new") if visit.may("operator") else None))  # fmt: skip

    await refresh(None)
    visit.watch(("rollout",), refresh)


def _row(rollout: views.RolloutView) -> dict[str, Any]:
    total, done, failed = (
        sum(rollout.counts.values()),
        rollout.counts.get("succeeded", 0),
        rollout.counts.get("failed", 0),
    )
    return {
        "id": rollout.id,
        "name": rollout.name,
        "rollout": {"text": rollout.name, "href": f"/rollouts/{rollout.id}"},
        "state": word_of(ROLLOUT_STATES, rollout.state).cell(rollout.reason),
        "of": rollout.shadow,
        "done": {"share": done / total if total else 0.0, "text": f"{number(done)} of {number(total)}", "tone": "ok"},
        "failed": number(failed) if failed else None,
        "author": rollout.author,
        "changed": rollout.changed_at,
    }


@page("/rollouts/new", "New rollout", section="/rollouts")
async def new_rollout(visit: Visit) -> None:
    await RolloutForm(visit).build()


@page("/rollouts/{rollout_id}", "Rollout", section="/rollouts")
async def rollout_page(visit: Visit, rollout_id: str) -> None:
    first = await visit.fleet.rollouts.rollout(visit.actor, rollout_id)
    visit.client.title = f"{first.name} - Edgewise"
    with page_head(first.name) as (under, actions):
        pass
    with Tag("div", cls="stack"):
        with panel("Stages"):
            stages = Tag("div", cls="stack")
        with panel("Devices", body=False):
            table = Table("Devices of this rollout", DEVICE_COLUMNS)
            nothing = Tag("div")
            foot = Tag("div", cls="table-foot")
        with Tag("div", cls="halves"):
            with panel("Document"):
                Tag(
                    "pre",
                    pretty(first.document),
                    "log",
                    tabindex="0",
                    role="region",
                    aria_label="Document of the rollout",
                )
            with panel("Plan"):
                facts(_plan_facts(read_plan(first.plan), first.query))
    start = 0

    async def refresh(ids: set[str] | None) -> None:
        if ids is not None and rollout_id not in ids:
            return
        now = await visit.fleet.rollouts.rollout(visit.actor, rollout_id)
        redraw(under, lambda: _under(now))
        redraw(actions, lambda: _actions(visit, now), key=now.state)
        redraw(stages, lambda: _stages(now))
        devices = sorted(now.devices, key=lambda d: (_FIRST.index(d.state) if d.state in _FIRST else 0, d.uid))
        shown = devices[start : start + PAGE]
        names = await visit.names([device.uid for device in shown])
        table.show([_device_row(device, names) for device in shown])
        table.visible = foot.visible = bool(devices)
        redraw(
            nothing,
            lambda: None if devices else empty("memory", "No device yet", _before(now.state)),
            key=(now.state, bool(devices)),
        )
        redraw(foot, lambda: paging(len(devices)), key=(start, len(devices)))

    def paging(total: int) -> None:
        Tag(
            "span",
            f"{number(min(start + 1, total))}\u2013{number(min(start + PAGE, total))} of {number(total)}; failed ones first",
        )
        with Tag("div", cls="end"):
            button("Previous", lambda: turn(-PAGE), little=True, disabled=start == 0)
            button("Next", lambda: turn(PAGE), little=True, disabled=start + PAGE >= total)

    async def turn(by: int) -> None:
        nonlocal start
        start = max(0, start + by)
        await refresh(None)

    await refresh(None)
    visit.watch(("rollout",), refresh)


def _before(state: str) -> str:
    """Why a rollout has no device, and what to do about it."""
    if state == "draft":
        return "This is a draft: nothing has been sent. Start shows which devices each stage takes, then begins."
    if state == "waiting-approval":
        return "It waits for an approval. Approve shows which devices the stage takes."
    return "Devices appear here when a stage takes them."


def _under(rollout: views.RolloutView) -> None:
    state(word_of(ROLLOUT_STATES, rollout.state), badge=True)
    Tag(
        "span",
        f"{rollout.shadow} by {rollout.author}"
        + (f", approved by {rollout.approved_by}" if rollout.approved_by else ""),
    )
    TimeAgo(rollout.changed_at)


def _actions(visit: Visit, rollout: views.RolloutView) -> None:
    if not visit.may("operator"):
        return
    for what, text in _ACTS.items():
        if rollout.state in ACTS[what]:
            tone: Any = (
                "danger"
                if what in ("roll-back", "cancel")
                else "primary"
                if what in ("start", "approve", "resume")
                else ""
            )
            button(text, _actor(visit, rollout, what), tone=tone)
    link_button("Copy", f"/rollouts/new?from={rollout.id}", icon_name="content_copy")


def _actor(visit: Visit, rollout: views.RolloutView, what: str) -> Any:
    questions = {
        "roll-back": f"Every device that {rollout.name} has changed gets back what it had before.",
        "cancel": f"{rollout.name} ends; devices that it has changed stay as they are.",
    }

    async def act() -> None:
        if what in ("start", "approve"):
            await (start_rollout if what == "start" else approve_rollout)(visit, rollout)
            return
        text = questions.get(what)
        if text and not await ask(f"{_ACTS[what]}?", text, _ACTS[what]):
            return
        await visit.act(lambda me: visit.fleet.rollouts.act(me, rollout.id, what))

    return act


def _stages(rollout: views.RolloutView) -> None:
    plan = read_plan(rollout.plan)
    if rollout.reason:
        tone: Any = {"failed": "bad", "rolled-back": "bad", "rolling-back": "warn", "paused": "warn"}.get(
            rollout.state, "info"
        )
        notice(tone, rollout.reason)
    with Tag("ol", cls="stages"):
        for index in range(plan.count):
            _stage(rollout, plan.stage(index), index)


def _stage(rollout: views.RolloutView, stage: Stage, index: int) -> None:
    own = [device for device in rollout.devices if device.stage == index]
    counts = {name: sum(device.state == name for device in own) for name in _FIRST}
    current = rollout.state in views.GOING and rollout.stage == index
    with Tag("li", cls=f"stage {'current' if current else ''}", aria_current="step" if current else None):
        Tag("h3", f"Stage {index + 1}: {stage_text(stage)}")
        Tag("div", f"{plural(len(own), 'device')}, watched for {span(stage.bake_s)}, within {span(stage.deadline_s)}"
            + (", after an approval" if stage.approval else ""), "small muted")  # fmt: skip
        if own:
            with Tag("div", cls="statebar", style="margin:8px 0 6px", role="img", aria_label=_said(counts)):
                for name, count in counts.items():
                    if count:
                        Tag("span", cls=f"bar-{DEVICE_STATES[name].tone}", style=f"flex:{count}")
            Tag("div", _said(counts), "small")


def _said(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number(count)} {DEVICE_STATES[name].word.lower()}" for name, count in counts.items() if count)


def _device_row(device: views.RolloutDeviceView, names: Mapping[str, str]) -> dict[str, Any]:
    checks = "; ".join(_measured(name, value) for name, value in device.checks.items())
    return {
        "id": device.uid,
        "name": names.get(device.uid, device.uid),
        "device": {"text": names.get(device.uid, device.uid), "href": f"/devices/{device.uid}"},
        "stage": str(device.stage + 1),
        "state": word_of(DEVICE_STATES, device.state).cell(),
        "checks": checks,
        "at": device.at,
        "reason": device.reason,
    }


def _measured(name: str, value: Any) -> str:
    """A check of a device in words: shares in percent, the rest with its unit."""
    if name == "agreement" and isinstance(value, (int, float)):
        return f"agreement {value:.0%}"
    if name in GAUGES and isinstance(value, (int, float)):
        gauge = GAUGES[name]
        return f"{gauge.label.lower()} {gauge.text(value)}"
    return f"{name.replace('_', ' ')} {value:.3g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"


def _plan_facts(plan: RolloutPlan, query: str) -> Sequence[tuple[str, str]]:
    behaviour = plan.behaviour
    trial = "none" if behaviour is None else (
        f"agreement at least {behaviour.agreement:.0%}, speed at least {behaviour.speed:.0%}, energy at most"
        f" {behaviour.energy:.0%} of the model in use"
    )  # fmt: skip
    return [
        ("Devices", query or "all"),
        ("How", "laid over what a device has" if plan.mode == "merge" else "replaces what a device has"),
        ("May fail", f"{plan.max_failed:.0%} of a stage"),
        ("May be away", f"{plan.max_missing:.0%} of a stage"),
        ("Trial of a model", trial),
        ("On failure", "roll back by itself" if plan.on_failure == "roll-back" else "pause and wait for somebody"),
        ("Approval", "by somebody other than the author" if plan.approval else "not needed to begin"),
    ]
