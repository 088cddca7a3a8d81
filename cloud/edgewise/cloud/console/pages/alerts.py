"""Alerts: those that are open, with acknowledging; and the rules that raise them, with silence and receivers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from edgewise.cloud.console.design import SEVERITIES, Word, word_of
from edgewise.cloud.console.pages.alert_form import edit_rule
from edgewise.cloud.console.parts import Column, Field, Table, Tag, ask, button, dialog, empty, page_head, panel, redraw
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import SWITCHES, gauge_of, number, plural, span
from edgewise.cloud.fleet import views

PAGE = 50
COLUMNS = (
    Column("severity", "Severity", "state"),
    Column("device", "Device", "link"),
    Column("message", "What", wrap=True),
    Column("rule", "Rule", narrow=False),
    Column("raised", "Since", "time"),
    Column("cleared", "Over", "time", narrow=False),
    Column("seen", "Seen by", narrow=False),
    Column("does", "Actions", "actions"),
)
RULE_COLUMNS = (
    Column("rule", "Rule"),
    Column("state", "State", "state"),
    Column("severity", "Severity", "state", narrow=False),
    Column("when", "When", wrap=True),
    Column("devices", "Devices", narrow=False, clip=True),
    Column("deliver", "Told to", narrow=False, clip=True),
    Column("does", "Actions", "actions"),
)
_SILENCES = (("3600", "1 hour"), ("28800", "8 hours"), ("86400", "1 day"), ("604800", "7 days"))


@page("/alerts", "Alerts")
async def alerts(visit: Visit) -> None:
    await AlertsPage(visit).build()


class AlertsPage:
    """The open alerts, or all; and the rules."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.places: list[str | None] = [None]
        self.after: str | None = None
        self.picked: list[str] = []

    async def build(self) -> None:
        with page_head("Alerts") as (self.under, _):
            pass
        with Tag("div", cls="stack"):
            with panel("Alerts", body=False) as end:
                self.bar = Tag("div")
                self.table = Table("Alerts", COLUMNS, on_action=self.acknowledge,
                                   on_pick=self.pick if self.visit.may("operator") else None)  # fmt: skip
                self.nothing = Tag("div")
                self.foot = Tag("div", cls="table-foot")
            with end:
                self.all = Field("Those that are over too", False, kind="check", on_change=self.again)
            with panel("Rules", body=False) as end:
                self.rules = Table("Rules", RULE_COLUMNS, on_action=self.act)
            with end:
                if self.visit.may("operator"):
                    button("New rule", self.new_rule, icon_name="add", little=True)
        await self.refresh(None)
        await self.refresh_rules()
        self.visit.watch(("alert",), self.refresh)

    def pick(self, ids: list[str]) -> None:
        self.picked = ids
        self.table.set_picked(ids)
        redraw(self.bar, self._bar, key=ids)

    def _bar(self) -> None:
        if self.picked:
            with Tag("div", cls="picked-bar", role="group", aria_label="Selected alerts"):
                Tag("strong", f"{plural(len(self.picked), 'alert')} selected")
                button("Mark these as seen", self.acknowledge_picked, icon_name="visibility", little=True)
                button("Clear", lambda: self.pick([]), little=True, tone="quiet")

    async def acknowledge_picked(self) -> None:
        for alert_id in self.picked:
            if await self.visit.act(lambda me, id_=alert_id: self.visit.fleet.alerts.acknowledge(me, id_)) is None:  # type: ignore[misc]
                break
        self.pick([])
        await self.refresh(None)

    async def again(self) -> None:
        self.places = [None]
        await self.refresh(None)

    async def refresh(self, _: set[str] | None) -> None:
        found = await self.visit.fleet.alerts.alerts(
            self.visit.actor, open_only=not self.all.value, limit=PAGE, after=self.places[-1]
        )
        names = await self.visit.names([alert.uid for alert in found.items])
        self.after = found.after
        self.table.show([_row(alert, names, self.visit.may("operator")) for alert in found.items])
        self.table.visible = bool(found.items)
        self.under.text = plural(found.total, "alert") + ("" if self.all.value else " open")
        redraw(self.nothing, lambda: None if found.items else empty(
            "notifications_none", "No alert", "Nothing is beyond its bounds. The rules below say what is watched."))  # fmt: skip
        redraw(self.foot, self._paging, key=(len(self.places), self.after))
        self.foot.visible = found.total > PAGE

    def _paging(self) -> None:
        with Tag("div", cls="end"):
            button("Previous", self.previous, little=True, disabled=len(self.places) == 1)
            button("Next", self.next, little=True, disabled=self.after is None)

    async def previous(self) -> None:
        self.places.pop()
        await self.refresh(None)

    async def next(self) -> None:
        self.places.append(self.after)
        await self.refresh(None)

    async def acknowledge(self, alert_id: str, _: str) -> None:
        await self.visit.act(lambda me: self.visit.fleet.alerts.acknowledge(me, alert_id), "Marked as seen by you.")
        await self.refresh(None)

    # --- rules ---

    async def refresh_rules(self) -> None:
        found = await self.visit.fleet.alerts.rules(self.visit.actor)
        self.by_id = {rule.id: rule for rule in found}
        self.rules.show([_rule_row(rule, self.visit.may("operator")) for rule in found])

    async def new_rule(self) -> None:
        if await edit_rule(self.visit, None):
            await self.refresh_rules()

    async def act(self, rule_id: str, what: str) -> None:
        rule, service = self.by_id[rule_id], self.visit.fleet.alerts
        if what == "edit":
            await edit_rule(self.visit, rule)
        elif what == "silence":
            await self._silence(rule)
        elif what == "unsilence":
            await self.visit.act(lambda me: service.silence(me, rule_id, 0.0), f"{rule.name} is heard again.")
        elif await ask(f"Delete {rule.name}?", "Its open alerts end. It cannot be taken back.", "Delete"):
            await self.visit.act(lambda me: service.delete_rule(me, rule_id))
        await self.refresh_rules()

    async def _silence(self, rule: views.AlertRuleView) -> None:
        with dialog(f"Silence {rule.name}") as (box, foot):
            Tag("p", "Nobody is told of its alerts for this long; they are still listed here.")
            length = Field("For", "3600", kind="select", options=_SILENCES)
            with foot:
                button("Cancel", lambda: box.submit(False))
                button("Silence", lambda: box.submit(True), tone="primary")
        yes, seconds = bool(await box), float(length.value)
        box.delete()
        if yes:
            await self.visit.act(lambda me: self.visit.fleet.alerts.silence(me, rule.id, seconds),
                                 f"{rule.name} is silent for {span(seconds)}.")  # fmt: skip


def _row(alert: views.AlertView, names: Mapping[str, str], acts: bool) -> dict[str, Any]:
    can = acts and not alert.acknowledged_by and alert.cleared_at is None
    return {
        "id": alert.id,
        "name": f"{names.get(alert.uid, alert.uid)}: {alert.message}" if alert.uid else alert.message,
        "severity": word_of(SEVERITIES, alert.severity).cell(),
        "device": {"text": names.get(alert.uid, alert.uid), "href": f"/devices/{alert.uid}"} if alert.uid else None,
        "message": alert.message,
        "rule": alert.rule,
        "raised": alert.raised_at,
        "cleared": alert.cleared_at,
        "seen": alert.acknowledged_by,
        "does": [{"action": "acknowledge", "label": "Mark as seen"}] if can else [],
    }


def _rule_row(rule: views.AlertRuleView, acts: bool) -> dict[str, Any]:
    silent = rule.silenced_until is not None and rule.silenced_until > time.time()
    if not rule.enabled:
        how = Word("Off", "toggle_off", "mute")
    else:
        how = Word("Silenced", "notifications_off", "warn") if silent else Word("On", "check_circle", "ok")
    does = [{"action": "edit", "label": "Edit"}, {"action": "unsilence", "label": "Hear again"} if silent else
            {"action": "silence", "label": "Silence"}, {"action": "delete", "label": "Delete", "tone": "danger"}]  # fmt: skip
    return {
        "id": rule.id,
        "name": rule.name,
        "rule": rule.name,
        "state": how.cell(),
        "severity": word_of(SEVERITIES, rule.severity).cell(),
        "when": condition_text(rule.condition),
        "devices": rule.query or "all",
        "deliver": ", ".join(str(receiver.get("mail") or receiver.get("webhook") or "") for receiver in rule.deliver)
        or "nobody",
        "does": does if acts else [],
    }


def condition_text(condition: Mapping[str, Any]) -> str:
    """A condition in words."""
    kind, held = str(condition.get("kind", "")), span(float(condition.get("for_s", 0.0)))
    if kind == "offline":
        return f"Gone for {held} without having said so"
    if kind == "certificate":
        return f"Certificate valid for less than {number(float(condition.get('below_days', 0)))} days"
    if kind == "out-of-sync":
        return f"A desired document is refused, or not in force after {held}"
    value = str(condition.get("value", ""))
    above = condition.get("above") is not None
    side, bound = ("above", float(condition["above"])) if above else ("below", float(condition.get("below") or 0.0))
    label = gauge_of(value).label
    if kind == "rise":
        return f"{label} {side} {bound:g} times its usual for {held}"
    if kind == "share":
        window = span(float(condition.get("window_s", 600)))
        return f"Share of {value.replace('_', ' ')} {side} {100 * bound:g}\u00a0% in {window}"
    if condition.get("of"):
        return f"{label} {side} {100 * bound:g}\u00a0% of {gauge_of(str(condition['of'])).label.lower()} for {held}"
    if value in SWITCHES and 0 < bound < 1:
        return f"{label} is {'on' if above else 'off'} for {held}"
    return f"{label} {side} {gauge_of(value).text(bound)} for {held}"
