"""What the author of a rollout decides: its stages, what counts as success, and what happens otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgewise.core.errors import InvalidRequest

Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=366 * 86_400, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stage(_Part):
    """Devices that come up together: a percentage of all (counted from the first), or those of a group's query.

    Attributes:
        bake_s: How long each device must stay healthy after it has succeeded.
        deadline_s: Time for the stage from its beginning; what has not succeeded then has failed.
        approval: Somebody must let it begin.
    """

    percent: Annotated[float, Field(gt=0, le=100)] | None = None
    query: str | None = Field(default=None, min_length=1, max_length=2000)
    bake_s: float = Field(default=60.0, ge=0, le=30 * 86_400)
    deadline_s: Seconds = 3600.0
    approval: bool = False

    @model_validator(mode="after")
    def _one_choice(self) -> Stage:
        if (self.percent is None) == (self.query is None):
            raise ValueError("give percent or query, one of them")
        return self


class Behaviour(_Part):
    """What a model must do on the device's own recent inputs before it goes live there (`wire.fleet.TrialResult`).

    Attributes:
        agreement: Least share of positions at which it agrees with the model in use.
        speed: Least tokens a second, as a ratio to the model in use.
        energy: Most joules a token, as a ratio; not asked where the device does not measure power.
    """

    agreement: Share = 0.6
    speed: Annotated[float, Field(ge=0)] = 0.7
    energy: Annotated[float, Field(gt=0)] = 1.5
    prompts: Annotated[int, Field(gt=0, le=256)] = 8
    tokens: Annotated[int, Field(gt=0, le=1024)] = 32


class RolloutPlan(_Part):
    """The stages, in order; the last one is everybody if none says so.

    Attributes:
        mode: "merge" lays the document over what each device already has; "replace" makes it the whole.
        approval: Somebody other than the author must let it begin.
        max_failed: Share of a stage's devices that may fail before the rollout does.
        max_missing: Share that may be away for the whole stage; they get the document when they come back.
        behaviour: For models: the trial before each device's change; None leaves it out.
        on_failure: Undo it everywhere, or stop and wait for somebody.
    """

    stages: tuple[Stage, ...] = Field(
        default=(Stage(percent=5), Stage(percent=25), Stage(percent=100)), min_length=1, max_length=20
    )
    mode: Literal["merge", "replace"] = "merge"
    approval: bool = False
    max_failed: Share = 0.0
    max_missing: Share = 0.2
    behaviour: Behaviour | None = Behaviour()
    on_failure: Literal["roll-back", "pause"] = "roll-back"

    @model_validator(mode="after")
    def _rising(self) -> RolloutPlan:
        shares = [stage.percent for stage in self.stages if stage.percent is not None]
        if shares != sorted(set(shares)):
            raise ValueError("percentages of stages must rise")
        return self

    def stage(self, index: int) -> Stage:
        """Stage `index`; after the last comes one for everybody who is left, as patient as the last."""
        if index < len(self.stages):
            return self.stages[index]
        return self.stages[-1].model_copy(update={"percent": 100.0, "query": None, "approval": False})

    @property
    def count(self) -> int:
        """Stages, with the one for everybody else."""
        return len(self.stages) + (self.stages[-1].percent != 100)


def read_plan(plan: Mapping[str, Any]) -> RolloutPlan:
    """The plan in a request or a row.

    Raises:
        InvalidRequest: It is none; the field is named.
    """
    try:
        return RolloutPlan.model_validate(plan)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in ("plan", *problem["loc"]))
        raise InvalidRequest(f"{place}: {problem['msg']}", param=place) from error
