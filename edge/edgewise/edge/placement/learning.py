"""What placement learns from requests: how fast models are on either side, how long answers become, how much crosses the link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from edgewise.core.clock import Clock
from edgewise.edge.placement.cost import traffic_of, work_of
from edgewise.edge.placement.measure import Expected, Lengths, LinkMeter, Paces, Track, Work
from edgewise.engine.request import RequestStats
from edgewise.pipeline.plan import Demand, Errand, Place, Plan
from edgewise.pipeline.receipt_store import Outcome

_TRIES = 3
_UNMEASURED = 4.0  # times the usual bytes: a slow engine sends every token in an event of its own
_TELLING = 32  # answers of one request whose accounts are kept
_FORGOTTEN_S = 3600.0  # a request of which no end was told no longer counts as running


@dataclass(frozen=True, slots=True)
class _Open:
    """A stage under way: how busy its place was with it, and whether its engine was ready when it began."""

    demand: Demand
    where: Place
    busy: int
    ready: bool
    began: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What one finished stage teaches: kept beside its receipt, so that a restart forgets nothing.

    Attributes:
        where: None where more than one place had a part in it, which teaches lengths alone.
        busy: Answers of the model that were made there at the same time.
        ready: Its engine was, when the stage began.
        limit: Of an answer's tokens; None for pictures, which have no lengths to learn.
        answers: The engines' accounts.
        work: Sizes, as they turned out.
        total_s, transfer_s: From the plan to the last item, and what of that the link was expected to take.
        up, down: Bytes over the link as a share of those that its size lets expect; None where nothing crossed it.
    """

    digest: str
    key: str
    where: Place | None
    busy: int
    ready: bool
    limit: int | None
    answers: tuple[RequestStats, ...]
    work: Work
    total_s: float
    transfer_s: float
    up: float | None = None
    down: float | None = None


_LESSON = TypeAdapter(Lesson)


class Experience:
    """Args:
    meters: Of the links, by the places that they lead to.
    """

    def __init__(self, meters: Mapping[Place, LinkMeter], clock: Clock) -> None:
        self._meters = meters
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

    def answer_tokens(self, errand: Errand, demand: Demand, *, most: bool = False) -> int:
        """How long each answer is expected to become; with `most`, what nine of ten stay below."""
        return self._lengths.expect(demand.digest, errand.key, demand.answer_tokens, 0.9 if most else 0.5)

    def fresh(self, errand: Errand, demand: Demand) -> float:
        """The share of the prompt that is not in a prefix cache."""
        return self._lengths.fresh(demand.digest, errand.key)

    def traffic(self, demand: Demand, up: int, down: int) -> tuple[int, int]:
        """Bytes over the link, mended by what such requests really cost."""
        return _mended(up, self._up.get(demand.digest)), _mended(down, self._down.get(demand.digest))

    def most_bytes(self, demand: Demand, up: int, down: int) -> int:
        """What nine of ten such requests stay below, both ways."""
        most_up, most_down = (
            _UNMEASURED if track is None or track.p90 is None else max(1.0, track.p90)
            for track in (self._up.get(demand.digest), self._down.get(demand.digest))
        )
        return round(up * most_up + down * most_down)

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

    def ended(self, outcome: Outcome) -> str | None:
        """The learner of the receipts: what this one teaches, as JSON. Answers that broke teach nothing."""
        open = self._open.pop(outcome.errand.id, ())
        stats = [one for one in outcome.stats if one is not None]
        if outcome.fault is not None or len(open) != 1 or not stats or len(stats) != len(outcome.stats):
            return None
        lesson = self._lesson(open[0], outcome, stats)
        self._learn(lesson)
        return _LESSON.dump_json(lesson).decode()

    def forget(self, errand: Errand) -> None:
        """It was not begun after all."""
        self._open.pop(errand.id, None)

    def recall(self, lessons: Iterable[str]) -> None:
        """Learn again what was learned before a restart; notes of another version are passed over."""
        for text in lessons:
            try:
                self._learn(_LESSON.validate_json(text))
            except ValidationError:
                continue

    def _lesson(self, stage: _Open, outcome: Outcome, stats: Sequence[RequestStats]) -> Lesson:
        demand = stage.demand
        work = work_of(demand, max(one.completion_tokens for one in stats), 1.0)
        if demand.stage == "generate":
            work = replace(work, read=max(one.prompt_tokens - one.cached_tokens for one in stats))
        links = [one.link for one in stats if one.link is not None]
        up, down = sum(link.up_bytes for link in links), sum(link.down_bytes for link in links)
        usual_up, usual_down = traffic_of(demand, max(one.completion_tokens for one in stats))
        far = outcome.place == stage.where != "local" and bool(links)
        return Lesson(
            digest=demand.digest,
            key=outcome.errand.key,
            where=stage.where if outcome.place == stage.where else None,
            busy=stage.busy,
            ready=stage.ready,
            limit=demand.answer_tokens if demand.stage == "generate" else None,
            answers=tuple(replace(one, segments=(), link=None) for one in stats[:_TELLING]),
            work=work,
            total_s=outcome.total_s,
            transfer_s=self._meters[stage.where].view().transfer_s(up, down) if far else 0.0,
            up=up / usual_up if far else None,
            down=down / usual_down if far else None,
        )

    def _learn(self, lesson: Lesson) -> None:
        digest = lesson.digest
        if lesson.limit is not None:
            self._lengths.learn(digest, lesson.key, lesson.limit, lesson.answers)
        if lesson.where is None:
            return
        if lesson.up is not None and lesson.down is not None:
            self._up.setdefault(digest, Track()).add(lesson.up)
            self._down.setdefault(digest, Track()).add(lesson.down)
        whole = _together(lesson.answers)
        if not lesson.ready:
            parts = whole.queued_s + whole.prefill_s + whole.decode_s
            self._loads.setdefault(digest, Track()).add(max(0.0, lesson.total_s - parts))
            return
        self._paces.of(digest, lesson.where, lesson.busy).learn(lesson.work, whole, lesson.total_s, lesson.transfer_s)

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
