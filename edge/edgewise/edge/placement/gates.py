"""What rules a place out, in this order: label, link and budget, model and context, deadline. Each gate says so in a sentence.

Pure functions of frozen inputs: the same circumstances give the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.edge.placement.budget import NOTHING_LIMITED, Left
from edgewise.edge.placement.protocol import LinkState
from edgewise.pipeline.plan import Demand, Errand, Place, PolicyName, Prediction
from edgewise.wire.messages import Capability, CloudInfo

LABELS: Mapping[Place, Privacy] = {"local": Privacy.PRIVATE, "peer": Privacy.SITE, "cloud": Privacy.ANY}
"""The strictest label that may go to each place."""
TRY_ROOM = 10.0
"""A request tries an unknown place only where its deadline leaves so many times what a known one takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is known of one place for one stage.

    Attributes:
        link: Of a place elsewhere; None for this device.
        info: What a place elsewhere said of itself.
        capability: Its model that fits the demand; None where there is none.
        left: What may still be spent there today.
        predicted: None before anything was measured.
    """

    where: Place
    link: LinkState | None = None
    info: CloudInfo | None = None
    capability: Capability | None = None
    left: Left = NOTHING_LIMITED
    predicted: Prediction | None = None


def ruled_out(errand: Errand, demand: Demand, policy: PolicyName, sight: Sight) -> str | None:
    """Why a place cannot be taken, by the first gate that it does not pass; None where it passes all but the deadline."""
    if demand.allowed and sight.where not in demand.allowed:
        return f"The pipeline allows {' or '.join(demand.allowed)} only."
    if sight.where == "local":
        return _no_local(demand)
    if demand.media:
        return "The prompt has pictures, film or sound, which are seen and heard on this device only."
    if errand.privacy < LABELS[sight.where]:
        return f"The request is labelled '{errand.privacy.label}', which keeps it from the {sight.where}."
    if policy == "local-only":
        return "The policy is 'local-only'."
    return _no_link(demand, sight) or _no_site(sight) or _no_budget(sight) or _no_capability(demand, sight)


def too_late(errand: Errand, sight: Sight) -> str | None:
    """Why a place would miss the deadline; None where it would not, or nobody knows."""
    total = None if sight.predicted is None else sight.predicted.total_s
    if errand.deadline_s is None or total is None or total <= errand.deadline_s:
        return None
    return f"It is expected to take {total:.2f} s, and the deadline is in {errand.deadline_s:.2f} s."


def may_try(errand: Errand, possible: Sequence[Sight]) -> bool:
    """Whether a request may be spent on finding out about a place that was never measured.

    Not where somebody waits for it in real time, nor where its deadline leaves less than `TRY_ROOM` times what a measured place
    would take: whoever knows a place that answers in time is not made to wait for an experiment.
    """
    known = [
        one.predicted.total_s for one in possible if one.predicted is not None and one.predicted.total_s is not None
    ]
    if not known:
        return True
    hurried = errand.deadline_s is not None and errand.deadline_s < TRY_ROOM * min(known)
    return errand.priority is not Priority.REALTIME and not hurried


def matching(demand: Demand, info: CloudInfo | None) -> Capability | None:
    """The model of a place elsewhere for a demand: the same files, or, where it knows no digest, the same name."""
    kind = "diffuse" if demand.stage == "diffuse" else "generate"
    models = [] if info is None else [one for one in info.models if one.kind == kind]
    same = next((one for one in models if one.digest is not None and one.digest == demand.digest), None)
    return same or next((one for one in models if one.digest is None and one.model == demand.model), None)


def _no_local(demand: Demand) -> str | None:
    if demand.local is None:
        return "The model is not on this device."
    if getattr(demand.local, "state", None) == "failed":
        return "The model's engine on this device keeps failing."
    return _no_room(demand, demand.context, "this device")


def _no_link(demand: Demand, sight: Sight) -> str | None:
    if sight.link is None or not sight.link.up:
        return (sight.link.why if sight.link else "") or f"The {sight.where} cannot be reached."
    if sight.info is not None and demand.upload_bytes > sight.info.max_request_bytes:
        return (
            f"The request has {demand.upload_bytes} bytes, and the {sight.where} takes {sight.info.max_request_bytes}."
        )
    return None


def _no_site(sight: Sight) -> str | None:
    if sight.where == "peer" and sight.info is not None and not sight.info.site:
        return "What answers at peers.engine does not say that it belongs to this site: set intake.site there."
    return None


def _no_budget(sight: Sight) -> str | None:
    predicted, left = sight.predicted, sight.left
    cost = 0 if predicted is None else predicted.budget_bytes
    if left.bytes is not None and cost > left.bytes:
        return f"It may cost {cost} bytes, and {max(0, left.bytes)} are left today (placement.daily_bytes)."
    price = 0.0 if predicted is None else predicted.budget_price
    if left.price is not None and (price > left.price or left.price < 0):
        return f"It may cost {price:.6g}, and {max(0.0, left.price):.6g} are left today (placement.daily_price)."
    return None


def _no_capability(demand: Demand, sight: Sight) -> str | None:
    found = sight.capability
    if found is None:
        named = sight.info is not None and any(one.model == demand.model for one in sight.info.models)
        return f"The {sight.where} has {'other files of' if named else 'not'} the model '{demand.model}'."
    if demand.needs_tokens and found.reads == "text":
        return (
            f"The {sight.where}'s back end knows texts only: no log probabilities come from there, and no grammar holds its "
            "answer."
        )
    return _no_room(demand, found.context, f"the {sight.where}")


def _no_room(demand: Demand, context: int | None, whose: str) -> str | None:
    needed = demand.prompt_tokens + demand.answer_tokens
    if context is None or needed <= context:
        return None
    return f"Prompt and answer need {needed} tokens, and the context on {whose} has {context}."
