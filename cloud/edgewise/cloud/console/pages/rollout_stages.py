"""The stages of a rollout's form: rows to add and remove, by share or by query, with how many devices each has now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgewise.cloud.console.parts import Field, Tag, button, redraw
from edgewise.cloud.console.words import plural
from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.rollouts import machine
from edgewise.cloud.fleet.rollouts.plan import RolloutPlan, Stage
from edgewise.cloud.fleet.services import Fleet

MOST = 20
PERCENT, QUERY, GROUP = "percent", "query", "group:"


def groups_of(groups: Sequence[views.GroupView]) -> Sequence[tuple[str, str]]:
    """Saved groups as choices: the term of the query language, and what is shown."""
    return [(f"{GROUP}{group.name}", f"Group {group.name} ({plural(group.count, 'device')})") for group in groups]


async def planned(
    fleet: Fleet, actor: Actor, rollout_id: str, query: str, plan: RolloutPlan
) -> Sequence[tuple[str, Sequence[str]]]:
    """The devices of each stage, just as the rollout of this id would take them now, with the stage's heading.

    Raises:
        InvalidRequest: A query is none.
    """
    everybody = machine.order(rollout_id, await fleet.registry.uids(actor, query))
    matches = {
        index: set(await fleet.registry.uids(actor, stage.query))
        for index, stage in enumerate(plan.stages)
        if stage.query is not None
    }
    stages = machine.assign(plan, everybody, matches)
    return [
        (f"Stage {index + 1}: {stage_text(plan.stage(index))}", [uid for uid in everybody if stages[uid] == index])
        for index in range(plan.count)
    ]


def stage_text(stage: Stage) -> str:
    """Whom a stage takes, in words."""
    if stage.query is not None:
        return stage.query
    return "everybody else" if stage.percent == 100 else f"{stage.percent:g} % of the devices"


class StageRow:
    """One stage of the form. Minutes are shown, seconds are kept."""

    def __init__(
        self, stage: Stage, groups: Sequence[tuple[str, str]], changed: Callable[[], Any], remove: Callable[[], Any]
    ) -> None:
        by = PERCENT if stage.percent is not None else stage.query if stage.query in dict(groups) else QUERY
        options = [(PERCENT, "A share of the devices"), *groups, (QUERY, "Those that match a query")]
        with Tag("li", cls="stage-row") as self.place:
            with Tag("div", cls="line"):
                self.title = Tag("h3", cls="grow")
                self.count = Tag("span", cls="muted small", role="status")
                self.away = button("Remove the stage", remove, icon_name="delete", tone="quiet", icon_only=True)
            with Tag("div", cls="fields"):
                self.by = Field("Devices", by, kind="select", options=options, on_change=self._choose)
                self.percent = Field("Percent", f"{stage.percent or 10:g}", kind="number", throttle=0.3)
                self.query = Field("Stage query", stage.query or "", throttle=0.3, placeholder="ring:canary")
                self.bake = Field("Watch each for (min)", _minutes(stage.bake_s), kind="number")
                self.deadline = Field("Deadline (min)", _minutes(stage.deadline_s), kind="number")
            self.approval = Field("Wait for an approval before this stage", stage.approval, kind="check")
        self._changed = changed
        for field in (self.percent, self.query):
            field.on_value_change(changed)
        self._show()

    def _show(self) -> None:
        self.percent.visible, self.query.visible = self.by.value == PERCENT, self.by.value == QUERY

    async def _choose(self) -> None:
        self._show()
        await self._changed()

    def number(self, n: int, *, alone: bool) -> None:
        self.title.text = f"Stage {n}"
        self.away.visible = not alone

    def read(self) -> Mapping[str, Any] | None:
        """As the plan has it; None where a field is no number, which the field then shows."""
        bake, deadline = self.bake.number(), self.deadline.number()
        whom = self._whom()
        for field, value in ((self.bake, bake), (self.deadline, deadline)):
            if value is None:
                field.fault("A number of minutes.")
        if whom is None or bake is None or deadline is None:
            return None
        return {**whom, "bake_s": bake * 60, "deadline_s": deadline * 60, "approval": bool(self.approval.value)}

    def _whom(self) -> Mapping[str, Any] | None:
        if self.by.value == PERCENT:
            percent = self.percent.number()
            good = percent is not None and 0 < percent <= 100
            self.percent.fault("" if good else "More than 0, at most 100.")
            return {"percent": percent} if good else None
        query = self.query.text if self.by.value == QUERY else str(self.by.value)
        self.query.fault("" if query else "Say which devices: ring:canary")
        return {"query": query} if query else None


class StageList:
    """All rows, in order. `changed` is called when the devices of a stage may be others."""

    def __init__(self, groups: Sequence[tuple[str, str]], stages: Sequence[Stage], changed: Callable[[], Any]) -> None:
        self._groups, self._changed = groups, changed
        self.rows: list[StageRow] = []
        self._list = Tag("ol", cls="stage-rows")
        self._rest = Tag("p", cls="muted small", role="status")
        with Tag("div", cls="line"):
            self._add = button("Add a stage", self.add, icon_name="add", little=True)
        for stage in stages:
            self._append(stage)
        self._number()

    def _append(self, stage: Stage) -> None:
        with self._list:
            row = StageRow(stage, self._groups, self._changed, lambda: self.remove(row))
        self.rows.append(row)

    async def add(self) -> None:
        """One more, as patient as the last; before the last if that is for everybody."""
        read = [row.read() or {} for row in self.rows]
        whole = len(read) > 1 and read[-1].get("percent") == 100
        below = [stage["percent"] for stage in read if stage.get("percent", 100) < 100]
        percent = round((max(below, default=0) + 100) / 2) if whole else 100
        times = {name: read[-1][name] for name in ("bake_s", "deadline_s") if name in read[-1]}
        self._append(Stage(percent=percent, **times))
        if whole:
            self.rows.insert(-1, self.rows.pop())
            self.rows[-2].place.move(target_index=len(self.rows) - 2)
        self._number()
        await self._changed()

    async def remove(self, row: StageRow) -> None:
        self.rows.remove(row)
        row.place.delete()
        self._number()
        await self._changed()

    def _number(self) -> None:
        for n, row in enumerate(self.rows, 1):
            row.number(n, alone=len(self.rows) == 1)
        self._add.visible = len(self.rows) < MOST

    def read(self) -> Sequence[Mapping[str, Any]] | None:
        """None where a row has a fault; it shows it."""
        read = [row.read() for row in self.rows]
        least = 0.0
        for row, stage in zip(self.rows, read, strict=True):
            percent = None if stage is None else stage.get("percent")
            if percent is not None and percent <= least:
                row.percent.fault(f"More than {least:g}: shares count from the first device, so they rise.")
                return None
            least = percent or least
        return None if None in read else [stage for stage in read if stage is not None]

    def show_counts(self, stages: Sequence[tuple[str, Sequence[str]]]) -> None:
        """How many devices each stage has now. Which ones a share takes is decided when the rollout is made, so beside a query a
        share's number is only about right."""
        mixed = any(row.by.value != PERCENT for row in self.rows)
        counts = Counter({index: len(uids) for index, (_, uids) in enumerate(stages)})
        for index, row in enumerate(self.rows):
            about = "about " if mixed and row.by.value == PERCENT else ""
            row.count.text = (
                f"{about}{plural(counts[index], 'device')} now" if counts[index] else "no device of its own now"
            )
        rest = counts[len(self.rows)]
        ended = len(stages) > len(self.rows)
        text = f"Then everybody else, as stage {len(stages)}: {plural(rest, 'device')} now." if ended else ""
        redraw(self._rest, lambda: Tag("span", text) if text else None)

    def clear_counts(self) -> None:
        for row in self.rows:
            row.count.text = ""


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g}"
