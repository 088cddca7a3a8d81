"""What is desired of a device against what it reports: what differs in plain words, and an editor of the desired document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgewise.cloud.console.design import SHADOW_STATES, Word
from edgewise.cloud.console.parts import Field, Tag, TimeAgo, button, dialog, empty, notice, panel, redraw, state
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import differences, pretty, span, value_text
from edgewise.cloud.fleet import views
from edgewise.wire.fleet import SHADOWS

TITLES = {
    "config": ("Settings", "Dotted settings and their values; what is not named is left as it is."),
    "models": ("Models", "What the device must hold, by name, source and digest."),
    "software": ("Software", "The version to run. Refused as unsigned until signed metadata exists."),
    "policy": ("Policy", "How much telemetry, which budgets and labels."),
}


async def build_shadows(visit: Visit, device: views.DeviceDetail) -> None:
    with Tag("div", cls="stack"):
        places = {}
        for shadow in SHADOWS:
            title, text = TITLES[shadow]
            with panel(title, body=False) as end:
                places[shadow] = Tag("div")
            with end:
                Tag("span", text, "small muted narrow-hide")
                if visit.may("operator"):
                    button("Edit", _editor(visit, device.uid, shadow), icon_name="edit", little=True)

    async def refresh(ids: set[str] | None) -> None:
        if ids is not None and device.uid not in ids and not any(id_.startswith(device.uid) for id_ in ids):
            return
        for shadow, place in places.items():
            view = await visit.fleet.shadows.shadow(visit.actor, device.uid, shadow)  # type: ignore[arg-type]
            redraw(place, lambda view=view: show_shadow(view))  # type: ignore[misc]

    await refresh(None)
    visit.watch(("shadow",), refresh)


def shadow_word(view: views.ShadowView) -> Word:
    """In force, refused, pending, or on its way to a device that has not said yet."""
    if view.in_sync:
        return SHADOW_STATES["applied"] if view.gen else Word("Nothing desired", "remove", "mute")
    if view.state == "refused" and view.seen >= view.gen:
        return SHADOW_STATES["refused"]
    return SHADOW_STATES["pending"] if view.seen >= view.gen else Word("Waits for the device", "schedule", "info")


def show_shadow(view: views.ShadowView) -> None:
    with Tag("div", cls="panel-body stack tight"):
        with Tag("div", cls="line"):
            state(shadow_word(view), badge=True)
            if view.gen:
                Tag("span", f"generation {view.gen} desired, {view.applied} in force", "muted")
            if view.desired_at:
                with Tag("span", cls="muted"):
                    Tag("span", f"by {view.author or 'unknown'} ")
                    TimeAgo(view.desired_at)
        if view.reason and not view.in_sync:
            notice(
                "bad" if view.state == "refused" else "info",
                view.reason,
                "block" if view.state == "refused" else "info",
            )
    _diff(view)
    if view.edits:
        with Tag("div", cls="panel-body stack tight"):
            Tag("h3", "Changed at the device")
            Tag("p", "Kept until the fleet sets these values.", "muted small")
            for edit in view.edits:
                age = f" {span(float(edit['age_s']))} before it was reported" if edit.get("age_s") else ""
                Tag(
                    "div",
                    f"{edit.get('path')} = {value_text(edit.get('value'))} by {edit.get('author') or 'unknown'}{age}",
                    "mono",
                )


def _diff(view: views.ShadowView) -> None:
    lines = differences(view.desired or {}, view.reported or {})
    if not lines:
        Tag("p", "Nothing is desired and nothing reported.", "muted small", style="padding:0 16px 12px")
        return
    different = [line for line in lines if line.word in ("changed", "only desired")]
    rest = [line for line in lines if line not in different]
    if different:
        diff_table(different, "Differs")
    if rest:
        with Tag("details", open=not different):
            Tag(
                "summary",
                f"{len(rest)} in force as desired, or set by the device alone",
                "small muted",
                style="padding:6px 16px",
            )
            diff_table(rest, "In force")


def diff_table(lines: Any, label: str) -> None:
    with Tag("table", cls="diff", aria_label=label):
        with Tag("thead"), Tag("tr"):
            for name in ("Setting", "Desired", "Reported", ""):
                Tag("th", name, scope="col") if name else Tag("td", cls="narrow-hide")
        with Tag("tbody"):
            for line in lines:
                with Tag("tr", cls="changed" if line.word in ("changed", "only desired") else ""):
                    Tag("td", line.path, "mono")
                    Tag("td", "\u2013" if line.left is None else value_text(line.left), "mono")
                    Tag("td", "\u2013" if line.right is None else value_text(line.right), "mono")
                    Tag(
                        "td",
                        {"changed": "differs", "only desired": "not there yet"}.get(line.word, line.word),
                        "small muted narrow-hide",
                    )


def parse_document(field: Field) -> Mapping[str, Any] | None:
    """The JSON object in a field; None, with the fault shown, if it is none."""
    try:
        document = json.loads(str(field.value))
    except ValueError as error:
        field.fault(f"This is not JSON: {error}")
        return None
    if not isinstance(document, dict):
        field.fault('The document is a JSON object: {"placement.policy": "prefer-local"}')
        return None
    field.fault("")
    return document


def _editor(visit: Visit, uid: str, shadow: str) -> Any:
    async def edit() -> None:
        view = await visit.fleet.shadows.shadow(visit.actor, uid, shadow)  # type: ignore[arg-type]
        with dialog(f"Edit: {TITLES[shadow][0].lower()}", wide=True) as (box, foot):
            Tag(
                "p",
                TITLES[shadow][1] + " The device applies the whole document, or refuses it and keeps what it has.",
                "muted",
            )
            field = Field("Desired document", pretty(view.desired or {}), kind="code", rows=14)
            preview = Tag("div")

            def review() -> Mapping[str, Any] | None:
                document = parse_document(field)
                if document is not None:
                    changed = [line for line in differences(document, view.desired or {}) if line.word != "same"]
                    redraw(preview, lambda: _preview(changed))
                return document

            async def save() -> None:
                document = review()
                if document is None:
                    return
                done = await visit.act(lambda me: visit.fleet.shadows.desire(me, uid, shadow, document),  # type: ignore[arg-type]
                                       "The new document is on its way.")  # fmt: skip
                if done is not None:
                    box.submit(True)

            with foot:
                button("Cancel", lambda: box.submit(False))
                button("Show what changes", review)
                button("Set", save, tone="primary")
        await box
        box.delete()

    return edit


def _preview(changed: Any) -> None:
    if not changed:
        empty("done", "No change", "This is what is desired already.")
        return
    with Tag("table", cls="diff", aria_label="What changes"):
        with Tag("thead"), Tag("tr"):
            for name in ("Setting", "New", "Now"):
                Tag("th", name, scope="col")
        with Tag("tbody"):
            for line in changed:
                with Tag("tr", cls="changed"):
                    Tag("td", line.path, "mono")
                    Tag("td", "removed" if line.word == "only reported" else value_text(line.left), "mono")
                    Tag("td", "not set" if line.word == "only desired" else value_text(line.right), "mono")
