"""Builds an encoder's candidates, holds each to float32 on real sentences, times those that pass, and chooses.

Four candidates: float32; all products static (QDQ); all in blocks; and a mixture. The mixture gives each group of products the
form that saves most time for the error that it adds, as long as the gate holds: where a layer loses too much, it stays float32.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from edgewise.models.encoders.calibrate import Calibration, calibrate
from edgewise.models.encoders.graph import BLOCK, PARTS, Form, build_graph, groups, products
from edgewise.models.encoders.record import GATE, CandidateRecord
from edgewise.models.encoders.run import Session
from edgewise.models.encoders.shape import EncoderShape
from edgewise.models.encoders.weights import Array

MANY: Final = 16
"""Sentences of the larger timing."""
_FEW: Final = 8
"""Sentences on which each group alone is judged, for the plan of the mixture; the gate then judges it on all."""
_BATCH: Final = 8
_ROUNDS: Final = 6
_SAFETY: Final = 0.8
"""Share of the gate's room that the mixture may plan to use: errors of groups do not quite add up."""
_TRIES: Final = 4
_UNITS: Final = 12
"""In so many parts at most, each judged alone in each form, an encoder is divided for the mixture."""
_LEAST: Final = 1e-9
_TAP_BYTES: Final = 128 << 20
_GAIN: Final = 0.98
"""A candidate must be faster than float32 by this factor to be worth its error."""

Rows = Sequence[Sequence[int]]
Told = Callable[[str, float], None]


@dataclass(slots=True)
class Candidate:
    """One that was built. `error` is one minus the smallest cosine."""

    name: str
    forms: Mapping[str, Form]
    model: bytes
    session: Session
    cosines: Array
    times: dict[int, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        return 1.0 - float(self.cosines.min())

    @property
    def passed(self) -> bool:
        return self.error <= 1.0 - GATE

    @property
    def cost(self) -> float:
        """Geometric mean of the times for one sentence and for many."""
        return float(np.sqrt(self.times[1] * self.times[MANY]))


@dataclass(frozen=True, slots=True)
class _Move:
    """Give these groups these forms: how much error that adds, and how much time it saves."""

    forms: Mapping[str, Form]
    error: float
    gain: float


class Ladder:
    """One model's candidates.

    Args:
        shape, weights: The encoder.
        calibration, judged: Rows of real sentences, not the same ones.
        threads: As the encoder will run.
    """

    def __init__(
        self, shape: EncoderShape, weights: Mapping[str, Array], calibration: Rows, judged: Rows, threads: int
    ) -> None:
        self._shape = shape
        self._weights = weights
        self._calibration = calibration
        self._judged = judged
        self._threads = threads
        self._calibrations: dict[str, Calibration] = {}
        self._truth = np.zeros((0, shape.width), np.float32)

    def climb(self, told: Told) -> tuple[Candidate, list[CandidateRecord]]:
        """The one to use, and the records of all, also of those that could not be built; `told` hears how far it is."""
        told("float32", 0.0)
        plain = self._plain()
        told("calibration", 0.1)
        self._calibrate()
        told("candidates", 0.2)
        names = groups(self._shape)
        built = [plain, self._build("int8-static", dict.fromkeys(names, "static"))]
        missing = []
        if self._shape.width % BLOCK == 0 and self._shape.hidden % BLOCK == 0:
            built.append(self._build("int8-blocks", dict.fromkeys(names, "blocks")))
        else:
            missing.append(_absent("int8-blocks", f"rows of its products are no multiple of {BLOCK}"))
        self._time(built)
        told("mixture", 0.3)
        mixed = self._mixture(plain, built[1:])
        if mixed is None:
            missing.append(_absent("int8-mixed", "no group of products can be rounded within the gate"))
        else:
            built.append(mixed)
        told("times", 0.9)
        self._time(built)
        best = _best(built)
        return best, [*(_record(it, best, len(names)) for it in built), *missing]

    # --- building ------------------------------------------------------------------------------------------------------

    def _plain(self) -> Candidate:
        model = build_graph(self._shape, self._weights).SerializeToString()
        session = Session(model, self._threads)
        self._truth = _vectors(session, self._judged)
        return Candidate("fp32", {}, model, session, _cosines(self._truth, self._truth))

    def _build(self, name: str, forms: Mapping[str, Form], judged: int | None = None) -> Candidate:
        """Judged on the first `judged` sentences, or on all."""
        model = build_graph(self._shape, self._weights, forms, self._calibrations).SerializeToString()
        session = Session(model, self._threads)
        vectors = _vectors(session, self._judged[:judged])
        return Candidate(name, forms, model, session, _cosines(vectors, self._truth[: len(vectors)]))

    def _calibrate(self) -> None:
        """From the inputs of every group, of as many sentences as fit in `_TAP_BYTES`."""
        names = groups(self._shape)
        tapped = Session(build_graph(self._shape, self._weights, taps=True).SerializeToString(), self._threads)
        a_token = 4 * self._shape.layers * (3 * self._shape.width + self._shape.hidden)
        room = _TAP_BYTES // a_token
        inputs: dict[str, list[Array]] = {name: [] for name in names}
        for row in self._calibration:
            if len(row) > room:
                break
            room -= len(row)
            for name, value in zip(names, tapped.outputs([row], [f"{it}.in" for it in names]), strict=True):
                inputs[name].append(value)
        for name, values in inputs.items():
            weights = [self._weights[f"{product}.weight"].T for product in products(name)]
            self._calibrations[name] = calibrate(np.concatenate(values), weights)

    def _mixture(self, plain: Candidate, whole: Sequence[Candidate]) -> Candidate | None:
        """Each unit alone in each form: what it adds in error, and its share of the whole candidate's gain in time."""
        total = sum(self._size(name) for name in groups(self._shape))
        moves: list[_Move] = []
        for candidate in whole:
            gain = plain.cost - candidate.cost
            for unit in _units(self._shape) if gain > 0 else ():
                forms = {name: candidate.forms[name] for name in unit}
                error = max(self._build("", forms, judged=_FEW).error, _LEAST)
                moves.append(_Move(forms, error, gain * sum(map(self._size, unit)) / total))
        moves.sort(key=lambda it: it.error / it.gain)
        budget = (1.0 - GATE) * _SAFETY
        for _ in range(_TRIES):
            forms = _within(moves, budget)
            if not forms:
                return None
            candidate = self._build("int8-mixed", forms)
            if candidate.passed:
                return candidate
            budget *= _SAFETY * (1.0 - GATE) / candidate.error
        return None

    def _size(self, group: str) -> int:
        return sum(self._weights[f"{it}.weight"].size for it in products(group))

    # --- measuring -----------------------------------------------------------------------------------------------------

    def _time(self, candidates: Sequence[Candidate]) -> None:
        """The quickest of several rounds, candidates in turn: what else runs on the machine disturbs all alike."""
        for count in (1, MANY):
            rows = self._judged[:count]
            best = {id(it): float("inf") for it in candidates}
            for _ in range(_ROUNDS):
                for it in candidates:
                    began = time.perf_counter()
                    it.session.run(rows)
                    best[id(it)] = min(best[id(it)], time.perf_counter() - began)
            for it in candidates:
                it.times[count] = best[id(it)]


def _units(shape: EncoderShape) -> list[tuple[str, ...]]:
    """What the mixture decides about together: one kind of group in a few layers that follow each other."""
    step = -(-shape.layers * len(PARTS) // _UNITS)
    return [
        tuple(f"{layer}.{part}" for layer in range(first, min(first + step, shape.layers)))
        for first in range(0, shape.layers, step)
        for part in PARTS
    ]


def _within(moves: Sequence[_Move], budget: float) -> dict[str, Form]:
    forms: dict[str, Form] = {}
    for move in moves:
        if move.error <= budget and not forms.keys() & move.forms.keys():
            forms |= move.forms
            budget -= move.error
    return forms


def _best(candidates: Sequence[Candidate]) -> Candidate:
    plain = candidates[0]
    rivals = [it for it in candidates if it.passed and (it is plain or it.cost < plain.cost * _GAIN)]
    return min(rivals, key=lambda it: it.cost)


def _record(it: Candidate, best: Candidate, count: int) -> CandidateRecord:
    why = ""
    if not it.passed:
        why = f"the gate: cosine {1 - it.error:.5f} is below {GATE}"
    elif it is not best:
        why = f"slower than {best.name}: {it.cost / best.cost:.2f} times its time"
    return CandidateRecord(
        name=it.name,
        forms=dict(Counter([*it.forms.values(), *["fp32"] * (count - len(it.forms))])),
        cosine_min=round(1 - it.error, 6),
        cosine_mean=round(float(it.cosines.mean()), 6),
        ms_one=round(it.times[1] * 1e3, 3),
        ms_many=round(it.times[MANY] * 1e3, 3),
        bytes=len(it.model),
        passed=it.passed,
        chosen=it is best,
        why=why,
    )


def _absent(name: str, why: str) -> CandidateRecord:
    return CandidateRecord(
        name=name,
        forms={},
        cosine_min=None,
        cosine_mean=None,
        ms_one=None,
        ms_many=None,
        bytes=0,
        passed=False,
        chosen=False,
        why=f"not built: {why}",
    )


def _vectors(session: Session, rows: Rows) -> Array:
    return np.concatenate([session.run(rows[at : at + _BATCH]) for at in range(0, len(rows), _BATCH)])


def _cosines(vectors: Array, truth: Array) -> Array:
    """Of vectors of length one, [rows]; what is no number counts as the opposite direction."""
    return np.asarray(np.nan_to_num((vectors * truth).sum(axis=1), nan=-1.0), np.float32)
