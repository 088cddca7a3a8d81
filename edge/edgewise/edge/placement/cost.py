"""What a place would take and cost, and the one number that places are compared by."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.edge.placement.measure import Expected, LinkView, Work
from edgewise.edge.placement.policy import PREFERRED, RATES
from edgewise.pipeline.plan import Demand, Place, PolicyName, Prediction
from edgewise.wire.messages import Capability

UNKNOWN_S = 1e4
"""An unknown latency counts as so long: a place that nobody measured is taken where it is preferred or the only one."""
DISLIKED_S = 1e6
"""What a policy's unloved place costs on top: more than any latency, so that it is taken only where the other one cannot be."""

_MESSAGE_BYTES = 700  # of a job around its tokens, with the headers of HTTP
_WRITTEN = 1.5  # a token id of four bytes, as it is written in a message
_TOKEN_DOWN_BYTES = 60  # an event of a stream with its framing, at the usual few tokens an event
_PICTURE_BYTES_PER_PIXEL = 1.5  # PNG


@dataclass(frozen=True, slots=True, kw_only=True)
class Strain:
    """Of this device: too hot to keep its pace, on battery, and how many times a second here counts because of its governor."""

    hot: bool = False
    cost: float = 1.0
    battery: bool = False


CALM = Strain()


def work_of(demand: Demand, answer_tokens: int, fresh: float) -> Work:
    """The size of a demand: `answer_tokens` are expected of each answer, `fresh` is the share of the prompt to be read."""
    if demand.stage == "diffuse":
        return Work(read=0, write=demand.steps * demand.pixels / 1e6)
    return Work(read=demand.prompt_tokens * fresh, write=answer_tokens)


def traffic_of(demand: Demand, answer_tokens: int) -> tuple[int, int]:
    """Bytes up and down over the link, if the stage ran elsewhere."""
    if demand.stage == "diffuse":
        return _MESSAGE_BYTES + demand.upload_bytes, round(
            _MESSAGE_BYTES + demand.answers * demand.pixels * _PICTURE_BYTES_PER_PIXEL
        )
    up = demand.answers * _MESSAGE_BYTES + round(_WRITTEN * demand.upload_bytes)
    return up, demand.answers * (_MESSAGE_BYTES + _TOKEN_DOWN_BYTES * answer_tokens)


def told_pace(capability: Capability, demand: Demand, work: Work, queue_s: float, transfer_s: float) -> Expected | None:
    """What a cloud's own figures (tokens or steps a second) promise before anything was measured from here; None without."""
    if not capability.speed or (work.read and not capability.prefill):
        return None
    written = demand.steps * demand.answers if demand.stage == "diffuse" else work.write
    read_s = work.read / capability.prefill if capability.prefill else 0.0
    return Expected(queue_s=queue_s, read_s=read_s, write_s=written / capability.speed, rest_s=transfer_s)


def local_prediction(expected: Expected | None, demand: Demand, work: Work, watts: float | None) -> Prediction:
    """`watts` is what computing draws on top of the idle device."""
    length = _length(demand, work)
    if expected is None:
        return Prediction(first_s=None, total_s=None, answer_tokens=length)
    busy_s = expected.bias * (expected.read_s + expected.write_s)
    return Prediction(
        first_s=expected.first_s,
        total_s=expected.total_s,
        joules=None if watts is None else watts * busy_s,
        answer_tokens=length,
    )


def far_prediction(
    expected: Expected | None,
    demand: Demand,
    capability: Capability | None,
    work: Work,
    *,
    traffic: tuple[int, int],
    most_bytes: int,
    most_tokens: int,
    powered: bool,
) -> Prediction:
    """`traffic` is bytes up and down; `most_bytes` and `most_tokens` (of each answer) are what a budget reckons with; `powered`:
    the power of this device is known, so that computing nothing takes nothing."""
    up, down = traffic
    price = 0.0 if capability is None else _price(demand, capability, work.tokens)
    return Prediction(
        first_s=None if expected is None else expected.first_s,
        total_s=None if expected is None else expected.total_s,
        up_bytes=up,
        down_bytes=down,
        joules=0.0 if powered else None,
        price=price,
        most_bytes=most_bytes,
        most_price=0.0 if capability is None else _price(demand, capability, most_tokens),
        answer_tokens=_length(demand, work),
    )


def score(
    policy: PolicyName,
    where: Place,
    predicted: Prediction,
    margin_s: float = 0.0,
    *,
    strain: Strain = CALM,
    unknown_s: float = UNKNOWN_S,
) -> float:
    """The cost of a place in seconds.

    Args:
        margin_s: What transfers at the 90th percentile add to those that are expected.
        unknown_s: What an unknown latency counts as.
    """
    rates = RATES[policy]
    latency = unknown_s if predicted.total_s is None else predicted.total_s + margin_s
    here = where == "local"
    if here:
        latency *= max(1.25 if strain.hot else 1.0, strain.cost)
    joules = (predicted.joules or 0.0) * (10.0 if here and strain.battery else 1.0)
    cost = (
        rates.second * latency
        + rates.money * predicted.price
        + rates.joule * joules
        + rates.byte * (predicted.up_bytes + predicted.down_bytes)
    )
    return cost + (0.0 if PREFERRED.get(policy, where) == where else DISLIKED_S)


def margin_of(link: LinkView, up_bytes: int, down_bytes: int) -> float:
    """By how much a transfer at the 90th percentile is slower than an expected one; never negative."""
    usual = link.transfer_s(up_bytes, down_bytes)
    return max(0.0, link.transfer_s(up_bytes, down_bytes, p90=True) - usual)


def _length(demand: Demand, work: Work) -> int | None:
    """Tokens of each answer; None for pictures."""
    return work.tokens if demand.stage == "generate" else None


def _price(demand: Demand, capability: Capability, answer_tokens: int) -> float:
    read, written = (0, demand.steps) if demand.stage == "diffuse" else (demand.prompt_tokens, answer_tokens)
    return demand.answers * (read * capability.price_in + written * capability.price_out) / 1000.0
