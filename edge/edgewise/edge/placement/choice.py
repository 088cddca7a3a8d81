"""From weighed places to a decision, and the sentences that explain it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from edgewise.core.errors import NoPlace
from edgewise.edge.placement.gates import Sight, too_late
from edgewise.edge.placement.hysteresis import ADVANTAGE, DWELL_S, Stay
from edgewise.edge.placement.policy import PREFERRED
from edgewise.pipeline.plan import Candidate, Decision, Demand, Errand, Place, PolicyName, Prediction

Choose = Callable[[Hashable, Mapping[Place, float], float, Place | None], Stay]

_NAMES: Mapping[Place, str] = {"local": "here", "cloud": "in the cloud", "peer": "on a peer"}


@dataclass(frozen=True, slots=True)
class Option:
    """One place: what is known of it, why it cannot be taken, or what it costs in seconds.

    A place that is `new` was never measured and shall be: its cost is what it would be if it took no time.
    """

    sight: Sight
    why: str | None
    cost: float | None
    new: bool = False

    @property
    def where(self) -> Place:
        return self.sight.where


@dataclass(frozen=True, slots=True)
class Weighed:
    """All places of a stage under a policy."""

    policy: PolicyName
    options: tuple[Option, ...]

    def option(self, where: Place) -> Option:
        return next(one for one in self.options if one.where == where)


def decide(
    errand: Errand, demand: Demand, weighed: Weighed, choose: Choose, now: float
) -> tuple[Option, Decision[Any]]:
    """The option to take, and the decision without its engine.

    A place that would miss the deadline is taken only where every other one would miss it too: a prediction may be wrong, and
    the deadline itself is kept by the engines.

    Raises:
        NoPlace: Every place is ruled out; the message says why, place by place.
    """
    possible = [one for one in weighed.options if one.why is None]
    if not possible:
        reasons = " ".join(f"{_NAMES[one.where].capitalize()}: {one.why}" for one in weighed.options)
        raise NoPlace(f"'{demand.model}' can run nowhere now. {reasons}")
    late = {one.where: why for one in possible if (why := too_late(errand, one.sight)) is not None}
    hopeless = len(late) == len(possible)
    taken = possible if hopeless else [one for one in possible if one.where not in late]
    scores: dict[Place, float] = {one.where: one.cost for one in taken if one.cost is not None}
    lane = (demand.stage, demand.digest, weighed.policy, errand.privacy, demand.allowed, _size(demand))
    chosen = _untried(weighed, scores) or weighed.option(choose(lane, scores, now, PREFERRED.get(weighed.policy)).where)
    candidates = tuple(
        _candidate(one, chosen, None if hopeless else late.get(one.where), weighed.policy) for one in weighed.options
    )
    decision: Decision[Any] = Decision(
        stage=demand.stage,
        where=chosen.where,
        reason=_reason(weighed, chosen, candidates, late.get(chosen.where)),
        engine=None,
        predicted=chosen.sight.predicted,
        candidates=candidates,
    )
    return chosen, decision


def _untried(weighed: Weighed, scores: Mapping[Place, float]) -> Option | None:
    """A new place that would be the best one if it took no time: one request finds out. It changes nothing for the others."""
    best = min(scores, key=lambda where: (scores[where], where))
    option = weighed.option(best)
    return option if option.new and len(scores) > 1 else None


def _candidate(option: Option, chosen: Option, late: str | None, policy: PolicyName) -> Candidate:
    why = option.why or late
    allowed = why is None
    if why is None and option is not chosen and PREFERRED.get(policy) == chosen.where:
        why = f"The policy is '{policy}'."
    elif why is None and option is not chosen:
        stays = option.cost is not None and chosen.cost is not None and option.cost < chosen.cost
        why = (
            f"It is cheaper, but not by {ADVANTAGE:.0%}, or the place changed less than {DWELL_S:g} s ago."
            if stays
            else "It costs more."
        )
    return Candidate(
        where=option.where,
        allowed=allowed,
        why=why or "It was chosen.",
        predicted=option.sight.predicted,
        score=option.cost if allowed else None,
    )


def _reason(weighed: Weighed, chosen: Option, candidates: tuple[Candidate, ...], late: str | None) -> str:
    others = [one for one in candidates if one.where != chosen.where]
    hurry = f" {late} No other place is sooner." if late else ""
    if not any(one.allowed for one in others):
        return (" ".join(f"Not {_NAMES[one.where]}: {one.why}" for one in others) or "There is no other place.") + hurry
    if chosen.new and PREFERRED.get(weighed.policy) != chosen.where:
        return f"It was never measured {_NAMES[chosen.where]}: this request does that.{hurry}"
    told = [
        f"{_seconds(one.predicted)} {_NAMES[one.where]}"
        for one in sorted(candidates, key=lambda one: one.where != chosen.where)
        if one.allowed
    ]
    return f"Policy '{weighed.policy}': expected {' against '.join(told)}.{hurry}"


def _seconds(predicted: Prediction | None) -> str:
    total = None if predicted is None else predicted.total_s
    return "an unknown time" if total is None else f"{total:.2f} s"


def _size(demand: Demand) -> int:
    """Requests of about the same size decide alike: steps of a factor of four."""
    size = demand.prompt_tokens + 8 * demand.answer_tokens * demand.answers + demand.steps * demand.pixels // 4096
    return int(math.log(max(1, size), 4))
