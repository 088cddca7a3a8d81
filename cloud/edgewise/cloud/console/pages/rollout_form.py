"""The form of a new rollout: what, to which devices (with the match shown), in which stages, and what counts as success."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.cloud.console.bulk import confirm_sections
from edgewise.cloud.console.design import DEVICE_STATES
from edgewise.cloud.console.pages.device_shadows import parse_document
from edgewise.cloud.console.pages.rollout_stages import StageList, groups_of, planned
from edgewise.cloud.console.parts import Field, Tag, button, icon, link_button, notice, page_head, panel, redraw
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import number, plural, pretty
from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.rollouts.plan import Behaviour, RolloutPlan, read_plan
from edgewise.core.errors import EdgewiseError, InvalidRequest

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
_MODES = (("merge", "Lay it over what a device has"), ("replace", "Replace what a device has"))
_FAILURES = (("roll-back", "Roll back by itself"), ("pause", "Pause and wait for somebody"))


class RolloutForm:
    """The last button makes a draft and shows the devices of each of its stages; only after that does anything happen to one.

    `/rollouts/new?from=ID` begins with what another rollout had.
    """

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        asked = visit.request.query_params
        self.copied_id = asked.get("from", "")[:64]
        self.shadow = asked.get("shadow", "models")
        self.query_asked = asked.get("query", "")[:1900]
        self.document_asked: Mapping[str, Any] | None = None
        self.plan = RolloutPlan()

    async def build(self) -> None:
        with page_head(
            "New rollout", "Begins with a few devices, goes on where all is well, goes back by itself where it is not."
        ):
            pass
        if not self.visit.may("operator"):
            notice("warn", "This needs the role operator. Ask an admin of this fleet.", "lock")
            return
        copied = await self._copied()
        groups = groups_of(await self.visit.fleet.registry.groups(self.visit.actor))
        with Tag("div", cls="stack"):
            with panel("1. What"), Tag("div", cls="stack"):
                self._what(f"{copied.name} (again)" if copied else "")
            with panel("2. Which devices"), Tag("div", cls="stack tight"):
                self._which(groups)
            with panel("3. In which stages"), Tag("div", cls="stack tight"):
                Tag("p", "A stage begins when the one before has succeeded. A device belongs to the first stage that takes it. "
                    "Shares count all devices of the rollout, from the first: 5, 25, 100.", "muted")  # fmt: skip
                self.stages = StageList(groups, self.plan.stages, self.match)
                Tag("p", "Watch: how long each changed device must stay online and well. Deadline: what has not succeeded by "
                    "then, from the beginning of the stage, has failed. An approval comes from somebody other than you.",
                    "muted small")  # fmt: skip
            with panel("4. What counts as success"), Tag("div", cls="stack"):
                self._success()
            with Tag("div", cls="line end"):
                link_button("Cancel", "/rollouts")
                button("Save as draft", lambda: self.save(start=False))
                button("Review and start", lambda: self.save(start=True), tone="primary", icon_name="play_arrow")
        await self.match()

    async def _copied(self) -> views.RolloutView | None:
        if not self.copied_id:
            return None
        other = await self.visit.fleet.rollouts.rollout(self.visit.actor, self.copied_id)
        self.shadow, self.query_asked, self.document_asked = other.shadow, other.query, other.document
        self.plan = read_plan(other.plan)
        return other

    def _what(self, name: str) -> None:
        shadow = self.shadow if self.shadow in EXAMPLES else "models"
        with Tag("div", cls="fields"):
            self.name = Field("Name", name, placeholder="smollm2 to all lines")
            self.kind = Field("Of", shadow, kind="select", options=_SHADOWS, on_change=self.example)
            self.mode = Field("How", self.plan.mode, kind="select", options=_MODES)
        hint = (
            "What each device is to have."
            if self.document_asked
            else "An example: replace it with what each device is to have."
        )
        self.document = Field(
            "Document", pretty(self.document_asked or EXAMPLES[shadow]), kind="code", rows=9, hint=hint
        )

    def example(self) -> None:
        kind = str(self.kind.value)
        self.document.value = pretty(EXAMPLES[kind])
        self.trials.visible = kind == "models"

    def _which(self, groups: Any) -> None:
        with Tag("div", cls="fields"):
            if groups:
                self.group = Field(
                    "Group", "", kind="select", options=[("", "By a query"), *groups], on_change=self._group
                )
            self.query = Field("Query", self.query_asked, throttle=0.3, on_change=self.match,
                               placeholder="site:lyon AND NOT ring:broad", hint="Empty means every device.")  # fmt: skip
        self.matched = Tag("div", cls="line", role="status")

    def _group(self) -> None:
        if self.group.value:
            self.query.value = str(self.group.value)

    def _success(self) -> None:
        plan, behaviour = self.plan, self.plan.behaviour or Behaviour()
        Tag("p", "A device has succeeded when it reports the document in force, has answered a real token, and has stayed "
            "online and well while it was watched.", "muted")  # fmt: skip
        with Tag("div", cls="fields"):
            self.max_failed = Field("May fail in a stage (%)", _percent(plan.max_failed), kind="number",
                                    hint="0: the first failure fails the rollout.")  # fmt: skip
            self.max_missing = Field("May be away in a stage (%)", _percent(plan.max_missing), kind="number",
                                     hint="Those get the document when they come back.")  # fmt: skip
            self.failure = Field("When a stage fails", plan.on_failure, kind="select", options=_FAILURES,
                                 hint="Back means: what each device had before.")  # fmt: skip
        with Tag("div", cls="stack tight") as self.trials:
            self.trial = Field("Try the model on each device's recent inputs before it is used there", plan.behaviour is not None,
                               kind="check", hint="It runs beside the model in use; only scores leave the device.")  # fmt: skip
            with Tag("div", cls="fields"):
                self.agreement = Field("Agreement at least (%)", _percent(behaviour.agreement), kind="number",
                                       hint="Tokens that both models would write.")  # fmt: skip
                self.speed = Field("Speed at least (%)", _percent(behaviour.speed), kind="number",
                                   hint="Tokens a second, of the model in use.")  # fmt: skip
                self.energy = Field("Energy at most (%)", _percent(behaviour.energy), kind="number",
                                    hint="Joules a token; where power is measured.")  # fmt: skip
        self.trials.visible = self.kind.value == "models"
        self.approval = Field("Somebody else must approve it before it begins", plan.approval, kind="check")

    async def match(self) -> None:
        """How many devices the query reaches now, by state, and how many of them each stage has."""
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
        await self._match_stages(query)

    async def _match_stages(self, query: str) -> None:
        read = self.stages.read()
        if read is None:
            self.stages.clear_counts()
            return
        try:
            plan = read_plan({"stages": read})
            shown = await planned(self.visit.fleet, self.visit.actor, "", query, plan)
        except InvalidRequest as error:
            self.stages.clear_counts()
            self.visit.complain(error.message)
            return
        self.stages.show_counts(shown)

    def _counts(self, counts: Mapping[str, int]) -> None:
        Tag("strong", f"{plural(sum(counts.values()), 'device')} now")
        if not sum(counts.values()):
            Tag("span", "A rollout needs one: change the query, or add a device to the fleet first.", "muted")
        for name, word in DEVICE_STATES.items():
            if counts.get(name):
                with Tag("span", cls=f"state tone-{word.tone}"):
                    icon(word.icon)
                    Tag("span", f"{number(counts[name])} {word.word.lower()}")

    def _plan(self) -> Mapping[str, Any] | None:
        """None where a field says something that is no number; the field shows it."""
        stages = self.stages.read()
        shares = (self.max_failed, self.max_missing, self.agreement, self.speed, self.energy)
        values = [field.number() for field in shares]
        for field, value in zip(shares, values, strict=True):
            if value is None:
                field.fault("A number of percent.")
        failed, missing, *bounds = [None if value is None else value / 100 for value in values]
        if stages is None or None in values:
            self.visit.complain("A field is empty or no number; see the form.")
            return None
        tried = self.kind.value == "models" and self.trial.value
        behaviour = dict(zip(("agreement", "speed", "energy"), bounds, strict=True)) if tried else None
        return {
            "stages": stages,
            "mode": str(self.mode.value),
            "approval": bool(self.approval.value),
            "max_failed": failed,
            "max_missing": missing,
            "behaviour": behaviour,
            "on_failure": str(self.failure.value),
        }

    async def save(self, *, start: bool) -> None:
        """A draft; with `start` its stages are shown, and it begins if the person says so."""
        document, plan = parse_document(self.document), self._plan()
        self.name.fault("" if self.name.text else "Name the rollout.")
        if document is None or plan is None or not self.name.text:
            return
        kind: Any = str(self.kind.value)
        made = await self.visit.act(
            lambda me: self.visit.fleet.rollouts.create(me, self.name.text, kind, document, self.query.text, plan)
        )
        if made is None:
            return
        if start:
            await start_rollout(self.visit, made)
        self.visit.client.open(f"/rollouts/{made.id}")


async def start_rollout(visit: Visit, draft: views.RolloutView) -> None:
    """Shows the devices of each stage of a draft, and starts it if the person says so; else it stays a draft."""
    plan = read_plan(draft.plan)
    sections = await visit.act(lambda me: planned(visit.fleet, me, draft.id, draft.query, plan))
    if sections is None:
        return
    needs = plan.approval or plan.stages[0].approval
    text = (
        "It begins with stage 1 once somebody other than you has approved it."
        if needs
        else "Stage 1 begins at once, each other one when the one before has succeeded."
    )
    if await confirm_sections(
        visit, f"Start {draft.name}?", f"{text} What matches the query later is reached too.",
        sections, "Start", no="Keep as draft", danger=False,
    ):  # fmt: skip
        await visit.act(lambda me: visit.fleet.rollouts.act(me, draft.id, "start"))


async def approve_rollout(visit: Visit, seen: views.RolloutView) -> None:
    """Shows the devices of the stage that waits, and lets it begin if the person says so."""
    rollout = await visit.fleet.rollouts.rollout(visit.actor, seen.id)
    plan = read_plan(rollout.plan)
    sections = await visit.act(lambda me: planned(visit.fleet, me, rollout.id, rollout.query, plan))
    if sections is None:
        return
    heading, first = sections[rollout.stage]
    uids = [device.uid for device in rollout.devices if device.stage == rollout.stage] or first
    if await confirm_sections(visit, f"Approve {rollout.name}?", "This stage then begins at once.", [(heading, uids)],
                              "Approve", danger=False):  # fmt: skip
        await visit.act(lambda me: visit.fleet.rollouts.act(me, rollout.id, "approve"))


def _percent(share: float) -> str:
    return f"{share * 100:g}"
