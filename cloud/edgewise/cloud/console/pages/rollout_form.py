"""The form of a new rollout: what, to which devices (with the match shown), in which stages, and what counts as success."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.cloud.console.bulk import confirm_devices
from edgewise.cloud.console.design import DEVICE_STATES
from edgewise.cloud.console.pages.device_shadows import parse_document
from edgewise.cloud.console.parts import Field, Tag, button, icon, notice, page_head, panel, redraw
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import number, plural, pretty
from edgewise.core.errors import EdgewiseError

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "models": {"models": [{"name": "smollm2-135m", "source": "pypi:edgewise-models", "load": True}]},
    "config": {"placement.policy": "prefer-local"},
    "policy": {"telemetry": {"period_s": 10}},
    "software": {"version": "0.2.0", "url": "https://", "sha256": "", "metadata": {}},
}
_SHADOWS = (
    ("models", "Models"),
    ("config", "Settings"),
    ("policy", "Policy"),
    ("software", "Software (needs signed metadata)"),
)


class RolloutForm:
    """Nothing is sent before the last button, which shows every device that the rollout can reach."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.shadow_asked = visit.request.query_params.get("shadow", "models")
        self.query_asked = visit.request.query_params.get("query", "")[:1900]

    async def build(self) -> None:
        with page_head(
            "New rollout", "Begins with a few devices, goes on where all is well, goes back by itself where it is not."
        ):
            pass
        if not self.visit.may("operator"):
            notice("warn", "This needs the role operator. Ask an admin of this fleet.", "lock")
            return
        with Tag("div", cls="stack"):
            with panel("What"), Tag("div", cls="stack"):
                self._what()
            with panel("Which devices"), Tag("div", cls="stack tight"):
                self.query = Field("Query", self.query_asked, throttle=0.3, on_change=self.match,
                                   placeholder="site:lyon AND NOT ring:broad", hint="Empty means every device.")  # fmt: skip
                self.matched = Tag("div", cls="line", role="status")
            with panel("How"), Tag("div", cls="stack"):
                self._how()
            with Tag("div", cls="line end"):
                button("Save as draft", lambda: self.save(start=False))
                button("Review and start", lambda: self.save(start=True), tone="primary", icon_name="play_arrow")
        await self.match()

    def _what(self) -> None:
        shadow = self.shadow_asked if self.shadow_asked in EXAMPLES else "models"
        with Tag("div", cls="fields"):
            self.name = Field("Name", placeholder="smollm2 to all lines")
            self.shadow = Field("Of", shadow, kind="select", options=_SHADOWS, on_change=self.example)
        self.document = Field("Document", pretty(EXAMPLES[shadow]), kind="code", rows=8,
                              hint="Laid over what each device already has. Replace the example.")  # fmt: skip

    def example(self) -> None:
        self.document.value = pretty(EXAMPLES[str(self.shadow.value)])

    def _how(self) -> None:
        with Tag("div", cls="fields"):
            self.stages = Field("Stages", "5, 25, 100", hint="Percent of the devices, rising.")
            self.bake = Field("Watch each device for (s)", "60", kind="number")
            self.deadline = Field("Time for a stage (s)", "3600", kind="number")
            self.max_failed = Field("May fail in a stage (%)", "0", kind="number")
            self.max_missing = Field("May be away in a stage (%)", "20", kind="number")
            self.failure = Field("When a stage fails", "roll-back", kind="select",
                                 options=(("roll-back", "Roll back by itself"), ("pause", "Pause and wait")))  # fmt: skip
        with Tag("div", cls="fields"):
            self.trial = Field("Try a model on the device's recent inputs first", True, kind="check")
            self.agreement = Field("Agreement at least (%)", "60", kind="number", hint="Only scores leave the device.")
            self.speed = Field("Speed at least (% of the model in use)", "70", kind="number")
            self.approval = Field("Somebody else must approve it", False, kind="check")

    async def match(self) -> None:
        """How many devices the query reaches now, by state."""
        query = self.query.text
        try:
            counts = await self.visit.fleet.registry.counts(self.visit.actor, query)
        except EdgewiseError as error:
            self.query.fault(error.message)
            return
        if query != self.query.text:
            return  # an answer to what was typed before
        self.query.fault("")
        redraw(self.matched, lambda: self._counts(counts))

    def _counts(self, counts: Mapping[str, int]) -> None:
        Tag("strong", f"{plural(sum(counts.values()), 'device')} now")
        for name, word in DEVICE_STATES.items():
            if counts.get(name):
                with Tag("span", cls=f"state tone-{word.tone}"):
                    icon(word.icon)
                    Tag("span", f"{number(counts[name])} {word.word.lower()}")

    def _plan(self) -> Mapping[str, Any] | None:
        """None where a field says something that is no number; the field shows it."""
        bake, deadline = self.bake.number(), self.deadline.number()
        percents = [_number(part) for part in self.stages.text.replace("%", "").split(",") if part.strip()]
        self.stages.fault("" if percents and None not in percents else "Percents with commas between: 5, 25, 100")
        failed, missing = self.max_failed.number(), self.max_missing.number()
        agreement, speed = self.agreement.number(), self.speed.number()
        numbers = (bake, deadline, failed, missing, agreement, speed)
        if None in percents or not percents or None in numbers:
            self.visit.complain("A field is empty or no number; see the form.")
            return None
        stages = [{"percent": percent, "bake_s": bake, "deadline_s": deadline} for percent in percents]
        behaviour = {"agreement": _share(agreement), "speed": _share(speed)} if self.trial.value else None
        return {
            "stages": stages,
            "approval": bool(self.approval.value),
            "max_failed": _share(failed),
            "max_missing": _share(missing),
            "behaviour": behaviour,
            "on_failure": str(self.failure.value),
        }

    async def save(self, *, start: bool) -> None:
        document, plan = parse_document(self.document), self._plan()
        self.name.fault("" if self.name.text else "Name the rollout.")
        if document is None or plan is None or not self.name.text:
            return
        query = self.query.text
        if start:
            uids = await self.visit.act(lambda me: self.visit.fleet.registry.uids(me, query))
            if uids is None or not await confirm_devices(
                self.visit, f"Start {self.name.text}?", f"It begins with stage 1 of {len(plan['stages'])}; "
                "a device that joins the query later is reached too.", uids, "Start", danger=False,
            ):  # fmt: skip
                return
        shadow: Any = str(self.shadow.value)
        made = await self.visit.act(
            lambda me: self.visit.fleet.rollouts.create(me, self.name.text, shadow, document, query, plan, start=start)
        )
        if made is not None:
            self.visit.client.open(f"/rollouts/{made.id}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _share(percent: float | None) -> float:
    return (percent or 0.0) / 100.0
