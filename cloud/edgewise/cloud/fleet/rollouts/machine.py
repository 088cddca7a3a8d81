"""What happens next in a rollout: pure functions of what is known. `runner.py` learns the facts and does what is decided here.

A device goes waiting -> trying (models: the candidate runs beside the model in use) -> changing (the document is desired) ->
probing (it answers a real token, and holds what it should) -> baking (it stays healthy) -> succeeded. Every step is entered in
the database before its effect is asked for, and asking twice is harmless: the service may die between any two lines.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from edgewise.cloud.fleet.rollouts.plan import Behaviour, RolloutPlan, Stage
from edgewise.wire.fleet import ENDED, TrialResult

Place = Literal[
    "waiting",
    "trying",
    "changing",
    "probing",
    "baking",
    "succeeded",
    "failed",
    "missing",
    "left",
    "restoring",
    "restored",
]
Deed = Literal["", "try", "change", "probe", "restore"]
SETTLED: frozenset[Place] = frozenset({"succeeded", "failed", "missing", "left", "restored"})
CHANGED: frozenset[Place] = frozenset({"changing", "probing", "baking", "succeeded"})
"""Where a device may have been given the document, so that undoing concerns it; what failed is undone at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A device in a rollout. `gen` is the generation with which it was given the document, 0 before; `at` when `state` began."""

    uid: str
    stage: int
    state: Place = "waiting"
    gen: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How far a command of the rollout is."""

    state: str
    reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a device now.

    Attributes:
        present: It can be talked to. `healthy`: it is online and not degraded. `away`: it announced that it would be.
        gone: Retired, or no longer matched by the rollout's query.
        gen: Newest desired generation; `ours` if this rollout made it.
        seen, applied, refused: What the device reported; `refused` is its reason.
        holds: It reports the content that the document asks for.
        trial, probe: Commands of this rollout to it, once sent.
    """

    present: bool = False
    healthy: bool = False
    away: bool = False
    gone: bool = False
    gen: int = 0
    ours: bool = False
    seen: int = 0
    applied: int = 0
    refused: str | None = None
    holds: bool = True
    trial: Outcome | None = None
    probe: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """To another state (or the same), and what is to be asked for."""

    state: Place
    do: Deed = ""
    reason: str = ""
    checks: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a stage: it goes on, has passed, or has failed and why."""

    kind: Literal["wait", "pass", "fail"]
    reason: str = ""


# --- who and when -----------------------------------------------------------------------------------------------------------


def order(rollout_id: str, uids: Collection[str]) -> list[str]:
    """Devices in an order that is the same each time and has nothing to do with their names."""
    return sorted(uids, key=lambda uid: hashlib.sha256(f"{rollout_id}/{uid}".encode()).digest())


def assign(plan: RolloutPlan, ordered: Sequence[str], matches: Mapping[int, Collection[str]]) -> dict[str, int]:
    """The stage of each device. `matches` has the devices of stages that are queries; percentages count all devices."""
    stages: dict[str, int] = {}
    for index in range(plan.count):
        stage = plan.stage(index)
        if stage.percent is None:
            chosen: Collection[str] = [uid for uid in ordered if uid in matches.get(index, ())]
        else:
            chosen = ordered[: math.ceil(round(stage.percent * len(ordered) / 100, 6))]  # 7 % of 100 are 7
        for uid in chosen:
            stages.setdefault(uid, index)
    return stages


# --- one device -------------------------------------------------------------------------------------------------------------


def next_move(member: Member, facts: Facts, plan: RolloutPlan, stage: Stage, *, trial: bool, now: float) -> Move | None:
    """What happens to a device, None if it is to be waited for. `trial`: this rollout brings models that must pass one."""
    if facts.gone and member.state not in SETTLED:
        return Move("left", reason="It no longer belongs to the group.")
    if member.state in ("changing", "probing", "baking") and member.gen and facts.gen > member.gen and not facts.ours:
        return Move("left", reason=f"A newer document (generation {facts.gen}) has taken this one's place.")
    if member.state == "failed":
        undo = plan.on_failure == "roll-back" and member.gen and facts.ours and facts.gen == member.gen
        return Move("failed", "restore") if undo else None
    if member.state == "missing":
        return Move("waiting") if facts.present else None
    if member.state == "waiting":
        return None if not facts.present else Move("trying", "try") if trial else Move("changing", "change")
    if member.state == "trying":
        return _trying(facts.trial, plan.behaviour)
    if member.state == "changing":
        return _changing(member, facts)
    if member.state == "probing":
        return _probing(facts)
    if member.state == "baking":
        if not facts.healthy and not facts.away:
            return Move("failed", reason="It did not stay healthy after the change.")
        return Move("succeeded") if facts.healthy and now - member.at >= stage.bake_s else None
    if member.state == "restoring":
        return _restoring(member, facts)
    return None


def _trying(trial: Outcome | None, behaviour: Behaviour | None) -> Move | None:
    if trial is None:
        return Move("trying", "try")
    if not trial.ended:
        return None
    if trial.state != "succeeded":
        return Move("failed", reason=f"Its trial of the model ended {trial.state}: {trial.reason}")
    try:
        scores = TrialResult.model_validate(trial.result)
    except ValidationError:
        return Move("failed", reason="Its trial of the model brought no scores.")
    checks = scores.model_dump(exclude_none=True)
    faults = [] if behaviour is None else judge(scores, behaviour)
    return (
        Move("failed", reason=" ".join(faults), checks=checks) if faults else Move("changing", "change", checks=checks)
    )


def judge(scores: TrialResult, behaviour: Behaviour) -> list[str]:
    """What a model does worse than it may; empty if it may go live."""
    faults = []
    if scores.prompts == 0:
        faults.append("No input was run.")
    if scores.agreement is not None and scores.agreement < behaviour.agreement:
        faults.append(
            f"It agrees with the model in use at {scores.agreement:.0%} of positions, {behaviour.agreement:.0%} are asked."
        )
    least = behaviour.speed * (scores.baseline_tokens_per_s or 0.0)
    if scores.tokens_per_s < least:
        faults.append(f"It makes {scores.tokens_per_s:.1f} tokens a second, at least {least:.1f} are asked.")
    if scores.joules_per_token is not None and scores.baseline_joules_per_token is not None:
        most = behaviour.energy * scores.baseline_joules_per_token
        if scores.joules_per_token > most:
            faults.append(f"It takes {scores.joules_per_token:.3g} J a token, at most {most:.3g} are allowed.")
    return faults


def _changing(member: Member, facts: Facts) -> Move | None:
    if member.gen == 0:
        return Move("changing", "change")
    if facts.seen >= member.gen and facts.applied < member.gen and facts.refused is not None:
        return Move("failed", reason=f"It refused the document: {facts.refused}")
    return Move("probing", "probe") if facts.applied >= member.gen else None


def _probing(facts: Facts) -> Move | None:
    probe = facts.probe
    if probe is None:
        return Move("probing", "probe")
    if not probe.ended:
        return None
    usage = probe.result.get("usage") or {}
    if probe.state != "succeeded" or not usage.get("completion_tokens"):
        return Move("failed", reason=f"It does not answer: {probe.reason or probe.state}")
    if not (facts.holds and facts.healthy):
        return None  # reports come after a restart; the stage's deadline ends the wait
    return Move("baking", checks={"answered": True, "holds": True})


def _restoring(member: Member, facts: Facts) -> Move | None:
    if member.gen == 0:
        return Move("left")  # it was never given the document
    if facts.gen == member.gen:
        return Move("restoring", "restore")  # still what the rollout made
    if not facts.ours:
        return Move("left", reason=f"A newer document (generation {facts.gen}) has taken this one's place.")
    if facts.seen >= facts.gen and facts.applied < facts.gen and facts.refused is not None:
        return Move("failed", reason=f"It refused the document that it had before: {facts.refused}")
    return Move("restored") if facts.applied >= facts.gen else None


# --- a stage ----------------------------------------------------------------------------------------------------------------


def at_deadline(member: Member) -> Move | None:
    """What becomes of a device whose stage is over."""
    if member.state in SETTLED:
        return None
    if member.state == "waiting":
        return Move("missing", reason="It was away for the whole stage.")
    return Move("failed", reason=f"It was still {member.state} at the deadline of its stage.")


def verdict(members: Sequence[Member], plan: RolloutPlan) -> Verdict:
    """Of the devices of one stage. Shares count those that still belong to it."""
    counted = [member for member in members if member.state != "left"]
    failed = sum(member.state == "failed" for member in counted)
    if failed > plan.max_failed * len(counted):
        return Verdict("fail", f"{failed} of {len(counted)} devices of the stage failed; {plan.max_failed:.0%} may.")
    if any(member.state not in SETTLED for member in counted):
        return Verdict("wait")
    missing = sum(member.state == "missing" for member in counted)
    if missing > plan.max_missing * len(counted):
        return Verdict(
            "fail", f"{missing} of {len(counted)} devices of the stage were away; {plan.max_missing:.0%} may be."
        )
    return Verdict("pass")
