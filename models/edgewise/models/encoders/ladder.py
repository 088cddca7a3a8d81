"""Builds an encoder's candidates, holds each to float32 on real inputs, times those that pass, and chooses.

float32; each form for all products; and a mixture. The mixture gives each group of products the form that saves most time for the
error that it adds, as long as the gate holds: where a layer loses too much, it stays float32.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from edgewise.models.encoders.network import Network, Objects, Session
from edgewise.models.encoders.record import FLOAT32, CandidateRecord
from edgewise.models.encoders.weights import Array

_FEW: Final = 8
"""Inputs on which each group alone is judged, for the plan of the mixture; the gate then judges it on all."""
_BATCH: Final = 8
_ROUNDS: Final = 6
_LEAST_ROUNDS, _LONG_S = 2, 10.0
"""Fewer rounds do where one takes so long that little else can disturb all of it."""
_LEAST: Final = 1e-9
_GAIN: Final = 0.98
"""A candidate must be faster than float32 by this factor to be worth its error."""

Told = Callable[[str, float], None]


@dataclass(slots=True)
class Candidate:
    """One that was built.

    Attributes:
        cosines: To float32, of each input.
        objection: Why it may not serve although it passes the gate; "" where nobody objects.
        times: Seconds, by the number of inputs that were computed together.
    """

    name: str
    forms: Mapping[str, str]
    model: bytes
    session: Session
    cosines: Array
    times: dict[int, float] = field(default_factory=dict)
    objection: str = ""

    @property
    def error(self) -> float:
        """One minus the smallest cosine."""
        return 1.0 - float(self.cosines.min())

    def passes(self, gate: float) -> bool:
        return not self.objection and self.error <= 1.0 - gate

    @property
    def cost(self) -> float:
        """Geometric mean of the times for one input and for many."""
        return float(np.exp(np.mean(np.log([*self.times.values()]))))


@dataclass(frozen=True, slots=True)
class _Move:
    """Give these groups these forms: how much error that adds, and how much time it saves."""

    forms: Mapping[str, str]
    error: float
    gain: float


class Ladder:
    """One network's candidates.

    Args:
        others: Further ones that are there already, by name: what computes the encoder where no graph does.
    """

    def __init__(self, network: Network, others: Mapping[str, Session] | None = None) -> None:
        self._network = network
        self._others = others or {}
        self._truth = np.zeros((0, 0), np.float32)

    def climb(self, told: Told) -> tuple[Candidate, list[CandidateRecord]]:
        """The one to use, and the records of all, also of those that could not be built; `told` hears how far it is."""
        built, absent = self.candidates(told)
        best = self._accepted(built)
        return best, [*(record_of(it, best, self._network.gate) for it in built), *absent]

    def _accepted(self, built: Sequence[Candidate]) -> Candidate:
        """The quickest to which the network has no objection; none is asked for about float32, to which all are held."""
        network = self._network
        while True:
            best = choose(built, network.gate)
            if best.name == FLOAT32 or not isinstance(network, Objects):
                return best
            best.objection = network.objection(best.session)
            if not best.objection:
                return best

    def candidates(self, told: Told) -> tuple[list[Candidate], list[CandidateRecord]]:
        """All that could be built, judged and timed, float32 first; and the records of the others."""
        network = self._network
        told("float32", 0.0)
        plain = self._plain()
        told("calibration", 0.1)
        network.calibrate()
        told("candidates", 0.2)
        wholes = [self._build(name, dict.fromkeys(network.groups, form)) for name, form in network.wholes.items()]
        self._time([plain, *wholes])
        told("mixture", 0.3)
        mixed = self._mixture(plain, wholes)
        absent = dict(network.absent)
        if mixed is None:
            absent["int8-mixed"] = "no group of products can be rounded within the gate and save time"
        elif twin := next((it.name for it in wholes if it.forms == mixed.forms), None):
            absent["int8-mixed"], mixed = f"it would be {twin}", None
        others = [self._other(name, session) for name, session in self._others.items()]
        built = [plain, *others, *wholes, *([] if mixed is None else [mixed])]
        told("times", 0.9)
        self._time(built)
        return built, [record_of_absent(name, why) for name, why in absent.items()]

    # --- building ------------------------------------------------------------------------------------------------------

    def _plain(self) -> Candidate:
        model = self._network.build({})
        session = self._network.open(model)
        self._truth = outputs(session, self._network.judged)
        return Candidate(FLOAT32, {}, model, session, cosines(self._truth, self._truth))

    def _build(self, name: str, forms: Mapping[str, str], judged: int | None = None) -> Candidate:
        """Judged on the first `judged` inputs, or on all."""
        model = self._network.build(forms)
        session = self._network.open(model)
        found = outputs(session, self._network.judged[:judged])
        return Candidate(name, forms, model, session, cosines(found, self._truth[: len(found)]))

    def _other(self, name: str, session: Session) -> Candidate:
        return Candidate(name, {}, b"", session, cosines(outputs(session, self._network.judged), self._truth))

    def _mixture(self, plain: Candidate, whole: Sequence[Candidate]) -> Candidate | None:
        """Each unit alone in each form: what it adds in error, and its share of the whole candidate's gain in time."""
        network = self._network
        total = sum(map(network.size, network.groups))
        moves: list[_Move] = []
        for candidate in whole:
            gain = plain.cost - candidate.cost
            for unit in network.units if gain > 0 else ():
                forms = {name: candidate.forms[name] for name in unit}
                error = max(self._build("", forms, judged=_FEW).error, _LEAST)
                moves.append(_Move(forms, error, gain * sum(map(network.size, unit)) / total))
        moves.sort(key=lambda it: it.error / it.gain)
        return self._largest(moves)

    def _largest(self, moves: Sequence[_Move]) -> Candidate | None:
        """The longest beginning of `moves` that passes, by bisection: what errors add up to is known only by trying."""
        best, low, high = None, 0, len(moves)
        while low < high:
            middle = (low + high + 1) // 2
            candidate = self._build("int8-mixed", _joined(moves[:middle]))
            if candidate.passes(self._network.gate):
                best, low = candidate, middle
            else:
                high = middle - 1
        return best

    # --- measuring -----------------------------------------------------------------------------------------------------

    def _time(self, candidates: Sequence[Candidate]) -> None:
        """The quickest of several rounds, candidates in turn: what else runs on the machine disturbs all alike."""
        for count in (1, self._network.many):
            inputs = self._network.judged[:count]
            best = {id(it): float("inf") for it in candidates}
            ends = time.perf_counter() + _LONG_S
            for number in range(_ROUNDS):
                if number >= _LEAST_ROUNDS and time.perf_counter() > ends:
                    break
                for it in candidates:
                    began = time.perf_counter()
                    it.session.run(inputs)
                    best[id(it)] = min(best[id(it)], time.perf_counter() - began)
            for it in candidates:
                it.times[count] = best[id(it)]


def _joined(moves: Sequence[_Move]) -> dict[str, str]:
    """The forms of all; where two are about the same group, the first counts."""
    forms: dict[str, str] = {}
    for move in moves:
        forms = {**move.forms, **forms}
    return forms


def choose(candidates: Sequence[Candidate], gate: float) -> Candidate:
    """The quickest that passes; the first is float32, which another must beat by `_GAIN`."""
    plain = candidates[0]
    rivals = [it for it in candidates if it.passes(gate) and (it is plain or it.cost < plain.cost * _GAIN)]
    return min(rivals, key=lambda it: it.cost)


def record_of(it: Candidate, best: Candidate, gate: float) -> CandidateRecord:
    """Of a candidate that was built and timed."""
    why = ""
    if it.objection:
        why = it.objection
    elif not it.passes(gate):
        why = f"the gate: cosine {1 - it.error:.5f} is below {gate:g}"
    elif it is not best:
        why = f"slower than {best.name}: {it.cost / best.cost:.2f} times its time"
    one, many = it.times.values()
    return CandidateRecord(
        name=it.name,
        forms=dict(Counter(it.forms.values())),
        cosine_min=round(1 - it.error, 6),
        cosine_mean=round(float(it.cosines.mean()), 6),
        ms_one=round(one * 1e3, 3),
        ms_many=round(many * 1e3, 3),
        bytes=len(it.model),
        passed=it.passes(gate),
        chosen=it is best,
        why=why,
    )


def record_of_absent(name: str, why: str) -> CandidateRecord:
    """Of a candidate that could not be built."""
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


def outputs(session: Session, inputs: Sequence[Any]) -> Array:
    """Of all inputs, [inputs, numbers]."""
    found = [session.run(inputs[at : at + _BATCH]) for at in range(0, len(inputs), _BATCH)]
    return np.concatenate([it.reshape(len(it), -1) for it in found])


def cosines(found: Array, truth: Array) -> Array:
    """Between rows, [rows]; what is no number counts as the opposite direction."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(truth, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.nan_to_num((found * truth).sum(axis=1) / lengths, nan=-1.0), np.float32)
