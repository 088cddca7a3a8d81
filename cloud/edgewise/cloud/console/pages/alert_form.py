"""The form of an alert's rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.cloud.console.parts import Field, Tag, button, dialog
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.fleet import views

_KINDS = (
    ("gauge", "A value of telemetry is beyond a bound"),
    ("rise", "A value is beyond what is usual for the device"),
    ("share", "A share of requests is beyond a bound"),
    ("offline", "The device is gone"),
    ("certificate", "The certificate ends soon"),
    ("out-of-sync", "The device is not as desired"),
)
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "gauge": ("value", "of", "side", "bound", "held"),
    "rise": ("value", "side", "bound", "held"),
    "share": ("value", "side", "bound", "held"),
    "offline": ("held",),
    "certificate": ("bound",),
    "out-of-sync": ("held",),
}


async def edit_rule(visit: Visit, rule: views.AlertRuleView | None) -> bool:
    """Asks for a rule and saves it; whether it was saved."""
    form = RuleForm(visit, rule)
    with dialog("New rule" if rule is None else f"Edit {rule.name}", wide=True) as (box, foot):
        form.build()

        async def save() -> None:
            said = form.rule()
            if said is None:
                return
            done = await visit.act(lambda me: visit.fleet.alerts.save_rule(me, said), "The rule is saved.")
            if done is not None:
                box.submit(True)

        with foot:
            button("Cancel", lambda: box.submit(False))
            button("Save", save, tone="primary")
    saved = bool(await box)
    box.delete()
    return saved


class RuleForm:
    """Shows the fields that a kind of condition has; what the form does not know of a condition is kept."""

    def __init__(self, visit: Visit, rule: views.AlertRuleView | None) -> None:
        self.visit = visit
        self.old = rule
        self.condition: Mapping[str, Any] = (
            rule.condition if rule else {"kind": "gauge", "value": "temperature_c", "above": 80, "for_s": 60}
        )

    def build(self) -> None:
        rule, old = self.old, self.condition
        with Tag("div", cls="fields"):
            self.name = Field("Name", rule.name if rule else "")
            self.severity = Field("Severity", rule.severity if rule else "warning", kind="select",
                                  options=(("info", "Info"), ("warning", "Warning"), ("critical", "Critical")))  # fmt: skip
            self.enabled = Field("Switched on", rule.enabled if rule else True, kind="check")
        self.query = Field("Devices (query)", rule.query if rule else "", hint="Empty means every device.")
        self.kind = Field("When", str(old.get("kind", "gauge")), kind="select", options=_KINDS, on_change=self.show)
        bound = old.get("above") if old.get("above") is not None else old.get("below", old.get("below_days"))
        with Tag("div", cls="fields"):
            self.parts = {
                "value": Field("Value", str(old.get("value", "")), hint="As in the charts: temperature_c"),
                "of": Field("As a ratio to (if any)", str(old.get("of") or ""), placeholder="memory_total"),
                "side": Field("Is", "below" if old.get("below") is not None else "above", kind="select",
                              options=(("above", "above"), ("below", "below"))),
                "bound": Field("Bound", "" if bound is None else f"{bound:g}", kind="number"),
                "held": Field("For (s)", f"{old.get('for_s', 60):g}", kind="number"),
            }  # fmt: skip
        receivers = [str(one.get("mail") or one.get("webhook") or "") for one in (rule.deliver if rule else ())]
        self.deliver = Field(
            "Tell",
            "\n".join(receivers),
            kind="area",
            rows=2,
            hint="One a line: ops@example.org or https://example.org/hook",
        )
        self.show()

    def show(self) -> None:
        fields = _FIELDS[str(self.kind.value)]
        for name, field in self.parts.items():
            field.visible = name in fields

    def rule(self) -> Mapping[str, Any] | None:
        """What to save; None where a field is wrong, which it shows."""
        kind = str(self.kind.value)
        fields, condition = _FIELDS[kind], self._kept(kind)
        for name, key in (
            ("held", "for_s"),
            ("bound", "below_days" if kind == "certificate" else str(self.parts["side"].value)),
        ):
            if name in fields:
                number = self.parts[name].number()
                if number is None:
                    self.parts[name].fault("A number is needed.")
                    return None
                condition[key] = number
        if "value" in fields:
            condition["value"] = self.parts["value"].text
        if "of" in fields and self.parts["of"].text:
            condition["of"] = self.parts["of"].text
        said: dict[str, Any] = {"name": self.name.text, "query": self.query.text, "condition": condition,
                                "severity": str(self.severity.value), "enabled": bool(self.enabled.value),
                                "deliver": [_receiver(line) for line in self.deliver.text.split()]}  # fmt: skip
        if self.old is not None:
            said["id"] = self.old.id
        return said

    def _kept(self, kind: str) -> dict[str, Any]:
        """Fields of the old condition that the form does not show, if it is of the same kind."""
        shown = ("above", "below", "below_days", "for_s", "value", "of", "clear")
        kept = {"among": ["requests_ok", "requests_failed"]} if kind == "share" else {}
        if self.condition.get("kind") == kind:
            kept |= {key: value for key, value in self.condition.items() if key not in shown}
        return {**kept, "kind": kind}


def _receiver(line: str) -> dict[str, str]:
    return {"webhook": line} if line.startswith(("http://", "https://")) else {"mail": line}
