"""What placement learns from requests: how fast models are on either side, how long answers become, how much crosses the link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgewise.core.clock import Clock
from edgewise.edge.placement.cost import traffic_of, work_of
from edgewise.edge.placement.measure import Expected, Lengths, LinkMeter, Paces, Track, Work
from edgewise.engine.request import RequestStats
from edgewise.pipeline.plan import Demand, Errand, Place, Plan
from edgewise.pipeline.receipt_store import Outcome

_TRIES = 3
_FORGOTTEN_S = 3600.0  # a request of which no end was told no longer counts as running


@dataclass(frozen=True, slots=True)
class _Open:
    """A stage under way: how busy its place was with it, and whether its engine was ready when it began."""

    demand: Demand
    where: Place
    busy: int
    ready: bool
    began: float


class Experience:
    """Args:
    meter: Of the link.
    """

    def __init__(self, meter: LinkMeter, clock: Clock) -> None:
        self._meter = meter
        self._clock = clock
        self._open: dict[str, tuple[_Open, ...]] = {}
        self._paces = Paces()
        self._lengths = Lengths()
        self._up: dict[str, Track] = {}
        self._down: dict[str, Track] = {}
        self._loads: dict[str, Track] = {}
        self._tries: Counter[tuple[str, Place]] = Counter()

    def __repr__(self) -> str:
        return f"Experience(open={len(self._open)})"

    # --- what is asked -----------------------------------------------------------------------------------------------------

    def answer_tokens(self, errand: Errand, demand: Demand) -> int:
        """How long each answer is expected to become."""
        return self._lengths.expect(demand.digest, errand.key, demand.answer_tokens)

    def fresh(self, errand: Errand, demand: Demand) -> float:
        """The share of the prompt that is not in a prefix cache."""
        return self._lengths.fresh(demand.digest, errand.key)

    def traffic(self, demand: Demand, up: int, down: int) -> tuple[int, int]:
        """Bytes over the link, mended by what such requests really cost."""
        return _mended(up, self._up.get(demand.digest)), _mended(down, self._down.get(demand.digest))

    def curious(self, demand: Demand, where: Place) -> bool:
        """Whether a place that was never measured is worth a request: a few are, also where they bring no measurement."""
        return self._tries[demand.digest, where] < _TRIES

    def expect(self, demand: Demand, where: Place, work: Work, transfer_s: float) -> Expected | None:
        """None before this model has answered there."""
        busy = self._busy(demand.digest, where) + demand.answers
        expected = self._paces.expect(demand.digest, where, busy, work, transfer_s)
        if expected is None or where != "local" or _ready(demand):
            return expected
        load = self._loads.get(demand.digest)
        return replace(expected, queue_s=expected.queue_s + ((load.median if load else None) or 0.0))

    # --- what is told ------------------------------------------------------------------------------------------------------

    def began(self, errand: Errand, demands: Sequence[Demand], plan: Plan) -> None:
        now = self._clock.monotonic()
        for decision, demand in zip(plan.decisions, demands, strict=True):
            self._tries[demand.digest, decision.where] += 1
        self._open[errand.id] = tuple(
            _Open(
                demand,
                decision.where,
                self._busy(demand.digest, decision.where) + demand.answers,
                decision.where != "local" or _ready(demand),
                now,
            )
            for demand, decision in zip(demands, plan.decisions, strict=True)
        )

    def ended(self, outcome: Outcome) -> None:
        """A listener of the receipts. Answers that broke, or that more than one place made, teach nothing about pace."""
        open = self._open.pop(outcome.errand.id, ())
        stats = [one for one in outcome.stats if one is not None]
        if outcome.fault is not None or len(open) != 1 or not stats or len(stats) != len(outcome.stats):
            return
        (stage,) = open
        digest, demand = stage.demand.digest, stage.demand
        if demand.stage == "generate":
            self._lengths.learn(digest, outcome.errand.key, demand.answer_tokens, stats)
        if outcome.place != stage.where:
            return
        self._learn_traffic(demand, stage, stats)
        whole = _together(stats)
        work = work_of(demand, whole.completion_tokens, 1.0)
        if demand.stage == "generate":
            work = replace(work, read=max(one.prompt_tokens - one.cached_tokens for one in stats))
        if not stage.ready:
            parts = whole.queued_s + whole.prefill_s + whole.decode_s
            self._loads.setdefault(digest, Track()).add(max(0.0, outcome.total_s - parts))
            return
        transfer_s = 0.0
        if stage.where != "local":
            links = [one.link for one in stats if one.link is not None]
            transfer_s = self._meter.view().transfer_s(
                sum(link.up_bytes for link in links), sum(link.down_bytes for link in links)
            )
        self._paces.of(digest, stage.where, stage.busy).learn(work, whole, outcome.total_s, transfer_s)

    def _learn_traffic(self, demand: Demand, stage: _Open, stats: Sequence[RequestStats]) -> None:
        links = [one.link for one in stats if one.link is not None]
        if stage.where == "local" or not links:
            return
        up, down = traffic_of(demand, max(one.completion_tokens for one in stats))
        self._up.setdefault(demand.digest, Track()).add(sum(link.up_bytes for link in links) / up)
        self._down.setdefault(demand.digest, Track()).add(sum(link.down_bytes for link in links) / down)

    def _busy(self, digest: str, where: Place) -> int:
        """Answers of this model that are made there now."""
        now = self._clock.monotonic()
        stale = [id for id, stages in self._open.items() if now - stages[0].began > _FORGOTTEN_S]
        for id in stale:
            del self._open[id]
        return sum(
            stage.demand.answers
            for stages in self._open.values()
            for stage in stages
            if stage.demand.digest == digest and stage.where == where
        )


def _together(stats: Sequence[RequestStats]) -> RequestStats:
    """Answers that were made side by side, as one: the longest of each part."""
    return replace(
        stats[0],
        queued_s=max(one.queued_s for one in stats),
        prefill_s=max(one.prefill_s for one in stats),
        decode_s=max(one.decode_s for one in stats),
        completion_tokens=max(one.completion_tokens for one in stats),
    )


def _mended(count: int, ratio: Track | None) -> int:
    return count if ratio is None or ratio.median is None else round(count * ratio.median)


def _ready(demand: Demand) -> bool:
    return getattr(demand.local, "state", "ready") == "ready"
