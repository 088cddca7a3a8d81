"""Where each stage runs, and why. Placement is decided behind `Planner`, which the composition root injects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from edgewise.engine.api import Engine
from edgewise.pipeline.spec import StageName, StageSpec
from edgewise.pipeline.task import Task

Place = Literal["local", "cloud", "peer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One stage's place. A remote engine has the same interface as the local one.

    Attributes:
        reason: One sentence, shown in the receipt.
    """

    stage: StageName
    where: Place
    reason: str
    engine: Engine


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision per stage, in order."""

    decisions: tuple[Decision, ...]

    def decision(self, stage: StageName) -> Decision:
        return next(decision for decision in self.decisions if decision.stage == stage)


class Planner(Protocol):
    """Chooses a place for every stage of a task."""

    async def plan(self, task: Task, stages: Sequence[StageSpec]) -> Plan:
        """Raises an `EdgewiseError` when no allowed place can run a stage."""


class LocalPlanner:
    """Runs everything here."""

    async def plan(self, task: Task, stages: Sequence[StageSpec]) -> Plan:
        del task  # nothing of it matters while there is one place
        return Plan(
            tuple(
                Decision(
                    stage=stage.name,
                    where="local",
                    reason="No other place is configured.",
                    engine=stage.model.engine,
                )
                for stage in stages
            )
        )
