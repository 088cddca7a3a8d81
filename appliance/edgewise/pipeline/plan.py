"""Where each stage runs, and why. Placement is decided behind `Planner`, which the composition root injects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from edgewise.core.errors import NoPlace
from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.pipeline.stages import StageName

Place = Literal["local", "cloud", "peer"]
Outside = Literal["cloud", "peer"]
"""Places that a link leads to."""
PolicyName = Literal["balanced", "prefer-local", "prefer-cloud", "prefer-peer", "cheapest", "fastest", "local-only"]
EngineT = TypeVar("EngineT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What of a request matters to placement, whatever its stages do.

    Attributes:
        id: The request's.
        key: Who asks.
        privacy: Label of its input; every stage's output inherits it.
        deadline_s: Seconds from now in which the answer must be complete; None for no limit.
        policy: What the caller asked for; None takes the configured one.
    """

    id: str
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    privacy: Privacy = Privacy.PRIVATE
    deadline_s: float | None = None
    policy: PolicyName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one stage needs.

    Attributes:
        model, digest: Name and manifest digest ("sha256:...").
        aliases: Other names that the model may be asked for by; what is configured for one of them holds for it.
        local: The engine on this device (`engine.api.Engine`, `engine.pictures.request.PictureEngine`); None where the model
            is not here.
        context: Largest prompt + answer of the local engine in tokens; None where it is unknown or does not apply.
        prompt_tokens, answer_tokens: Of the longest sequence; the answer's is an upper bound.
        answers: Sequences or pictures.
        steps, pixels: Of one picture.
        upload_bytes: Bytes that would cross the link upward if the stage ran elsewhere.
        needs_tokens: Only an engine that knows tokens will do: log probabilities are asked for, or a grammar holds the answer.
        media: The prompt has pictures, film or sound, which are sent to no other place.
        allowed: Places that the pipeline's description allows; empty for all.
    """

    stage: StageName
    model: str
    digest: str
    local: Any = None
    context: int | None = None
    prompt_tokens: int = 0
    answer_tokens: int = 0
    answers: int = 1
    steps: int = 0
    pixels: int = 0
    upload_bytes: int = 0
    needs_tokens: bool = False
    media: bool = False
    aliases: tuple[str, ...] = ()
    allowed: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a stage is expected to take at one place. None where nothing was measured yet.

    `most_bytes` (both ways) and `most_price` are what nine of ten such requests stay below: a budget has room for that or the
    place is not taken, and so much of it is spoken for while the stage runs. `answer_tokens` is how long each answer is expected
    to become; None for pictures.
    """

    first_s: float | None
    total_s: float | None
    up_bytes: int = 0
    down_bytes: int = 0
    joules: float | None = None
    price: float = 0.0
    most_bytes: int = 0
    most_price: float = 0.0
    answer_tokens: int | None = None

    @property
    def budget_bytes(self) -> int:
        """Bytes that a budget must have room for: never less than what is expected."""
        return max(self.most_bytes, self.up_bytes + self.down_bytes)

    @property
    def budget_price(self) -> float:
        """Money that a budget must have room for: never less than what is expected."""
        return max(self.most_price, self.price)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One place that was looked at. `score` is what places are compared by, smaller is better; None for one that was ruled out
    by a gate, whose reason `why` gives."""

    where: Place
    allowed: bool
    why: str
    predicted: Prediction | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[EngineT]):
    """One stage's place. An engine elsewhere has the same interface as the local one.

    Attributes:
        reason: One sentence, shown in the receipt.
        predicted: Of the chosen place, as stored before anything was sent.
        candidates: Every place that was looked at, the chosen one among them.
    """

    stage: StageName
    where: Place
    reason: str
    engine: EngineT
    predicted: Prediction | None = None
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision per stage, in order.

    Attributes:
        id: Names the stored plan; None where plans are not stored.
        policy: By which the places were compared; None where there was nothing to compare.
        watts: Power that this device draws for computing, beyond what it draws idle; None where it is unknown.
        measured: What link and device were like, by name with its unit; None for what is unknown.
    """

    decisions: tuple[Decision[Any], ...]
    id: str | None = None
    policy: PolicyName | None = None
    watts: float | None = None
    measured: Mapping[str, float | bool | str | None] = field(default_factory=dict)

    def decision(self, stage: StageName) -> Decision[Any]:
        return next(decision for decision in self.decisions if decision.stage == stage)


class Planner(Protocol):
    """Chooses a place for every stage of a request."""

    async def plan(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        """Raises an `EdgewiseError` when no allowed place can run a stage."""

    async def explain(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        """The same, for someone who only wants to know: nothing is stored, and the plan's engines must not be used."""


class LocalPlanner:
    """Runs everything here."""

    async def plan(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        del errand  # nothing of it matters while there is one place
        for demand in demands:
            if demand.allowed and "local" not in demand.allowed:
                raise NoPlace(
                    f"'{demand.model}' may run on {' or '.join(demand.allowed)} only, and this device has no other place than "
                    'itself: set cloud.url or peers.engine, or allow "local".'
                )
        return Plan(
            tuple(
                Decision(
                    stage=demand.stage,
                    where="local",
                    reason="No other place is configured.",
                    engine=demand.local,
                )
                for demand in demands
            )
        )

    async def explain(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        return await self.plan(errand, demands)
