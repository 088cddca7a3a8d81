"""What placement knows of links and engines, learned from what passes: means that follow, 90th percentiles, straight lines.

Nothing here is configured and nothing is guessed: what was never measured is None, and a prediction that would need it is too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgewise.engine.request import RequestStats

_WEIGHT = 0.2  # of the newest sample in a mean
_KEEP = 32  # samples of which a percentile is taken
_DECAY = 0.95  # of a line's older points, for each new one: it keeps the shape, ...
_RECENT = 0.6  # ... and the newest answers say how fast the machine is at the moment
_TELLING_BYTES = 16_384  # smaller pieces measure the round trip, not the bandwidth
_MAX_LENGTHS = 4096  # callers choose their limits
_MAX_BIAS = math.log(8.0)


class Track:
    """A quantity that is measured again and again: its exponentially weighted mean and its 90th percentile."""

    __slots__ = ("_count", "_last", "_mean", "_weight")

    def __init__(self, weight: float = _WEIGHT) -> None:
        self._weight = weight
        self._mean = 0.0
        self._count = 0
        self._last: deque[float] = deque(maxlen=_KEEP)

    def __repr__(self) -> str:
        return f"Track(mean={self.mean}, p90={self.p90}, count={self._count})"

    def add(self, value: float) -> None:
        self._count += 1
        self._mean += max(self._weight, 1.0 / self._count) * (value - self._mean)  # the first samples count alike
        self._last.append(value)

    @property
    def mean(self) -> float | None:
        return self._mean if self._count else None

    @property
    def median(self) -> float | None:
        return self._rank(0.5)

    @property
    def p90(self) -> float | None:
        return self._rank(0.9)

    def _rank(self, share: float) -> float | None:
        if not self._last:
            return None
        return sorted(self._last)[min(len(self._last) - 1, int(share * len(self._last)))]


class Line:
    """Seconds as a straight line over a size, by least squares with forgetting; neither slope nor start is negative.

    A line needs two sizes. With one it goes through the origin for larger sizes and stays level for smaller ones, which errs
    on the side of too long.
    """

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # weight, x, y, x*x, x*y

    def add(self, size: float, seconds: float) -> None:
        new = (1.0, size, seconds, size * size, size * seconds)
        self._sums = tuple(_DECAY * old + one for old, one in zip(self._sums, new, strict=True))  # type: ignore[assignment]

    def at(self, size: float) -> float | None:
        weight, sum_x, sum_y, sum_xx, sum_xy = self._sums
        if not weight:
            return None
        mean_x, mean_y = sum_x / weight, sum_y / weight
        spread = sum_xx / weight - mean_x * mean_x
        if spread <= 1e-3 * mean_x * mean_x or spread <= 0:
            return mean_y * max(1.0, size / mean_x) if mean_x > 0 else mean_y
        slope = max(0.0, (sum_xy / weight - mean_x * mean_y) / spread)
        start = mean_y - slope * mean_x
        if start < 0 < mean_x:
            slope, start = mean_y / mean_x, 0.0
        return start + slope * size


class LinkMeter:
    """`placement.protocol.Meter`: round trips and bandwidth of the link to the cloud."""

    def __init__(self) -> None:
        self._round_trip = Track()
        self._up = Track()  # seconds per byte
        self._down = Track()

    def round_trip(self, seconds: float, /) -> None:
        self._round_trip.add(seconds)

    def sent(self, count: int, seconds: float, /) -> None:
        self._moved(self._up, count, seconds)

    def received(self, count: int, seconds: float, /) -> None:
        self._moved(self._down, count, seconds)

    def view(self) -> LinkView:
        """As it stands."""
        return LinkView(
            round_trip_s=self._round_trip.mean,
            round_trip_p90_s=self._round_trip.p90,
            up_s_per_byte=self._up.mean,
            up_p90_s_per_byte=self._up.p90,
            down_s_per_byte=self._down.mean,
            down_p90_s_per_byte=self._down.p90,
        )

    def _moved(self, track: Track, count: int, seconds: float) -> None:
        if count < _TELLING_BYTES:
            return
        waiting = self._round_trip.mean or 0.0
        track.add(max(seconds - waiting, 0.1 * seconds) / count)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """A link at one moment; None where nothing was measured."""

    round_trip_s: float | None = None
    round_trip_p90_s: float | None = None
    up_s_per_byte: float | None = None
    up_p90_s_per_byte: float | None = None
    down_s_per_byte: float | None = None
    down_p90_s_per_byte: float | None = None

    def transfer_s(self, up_bytes: int, down_bytes: int, *, p90: bool = False) -> float:
        """Seconds for a question of `up_bytes` and an answer of `down_bytes`; what was never measured takes no time."""
        trip, up, down = (
            (self.round_trip_p90_s, self.up_p90_s_per_byte, self.down_p90_s_per_byte)
            if p90
            else (self.round_trip_s, self.up_s_per_byte, self.down_s_per_byte)
        )
        return (trip or 0.0) + up_bytes * (up or 0.0) + down_bytes * (down or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The size of a stage's work: tokens to read and to write (of pictures: megapixels to denoise, all steps together)."""

    read: float
    write: float

    @property
    def tokens(self) -> int:
        """Of each answer."""
        return round(self.write)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Seconds of the parts of a stage at one place. `rest_s` is what the engine's own account does not hold."""

    queue_s: float
    read_s: float
    write_s: float
    rest_s: float = 0.0
    bias: float = 1.0

    @property
    def first_s(self) -> float:
        return self.bias * (self.queue_s + self.read_s + self.rest_s)

    @property
    def total_s(self) -> float:
        return self.first_s + self.bias * self.write_s


class Pace:
    """One model at one place while a certain number of answers are made: how long waiting, reading and writing take.

    The parts are learned slowly; by how much totals are off is learned fast (`bias`), since a machine's load and temperature
    change sooner than a model's shape.
    """

    def __init__(self) -> None:
        self._queue = Track()
        self._read = Line()
        self._write = Line()
        self._rest = Track()
        self._bias = Track(_RECENT)

    def learn(self, work: Work, stats: RequestStats, total_s: float, transfer_s: float) -> None:
        """From a whole answer; `work` is what it turned out to be."""
        known = self.expect(work, transfer_s, corrected=False)
        if known is not None and known.total_s > 0 and total_s > 0:
            self._bias.add(max(-_MAX_BIAS, min(_MAX_BIAS, math.log(total_s / known.total_s))))
        self._queue.add(stats.queued_s)
        self._read.add(work.read, stats.prefill_s)
        self._write.add(work.write, stats.decode_s)
        parts = stats.queued_s + stats.prefill_s + stats.decode_s
        self._rest.add(max(0.0, total_s - parts - transfer_s))

    def expect(self, work: Work, transfer_s: float, *, corrected: bool = True) -> Expected | None:
        """None before anything was learned."""
        read, write = self._read.at(work.read), self._write.at(work.write)
        if read is None or write is None:
            return None
        return Expected(
            queue_s=self._queue.median or 0.0,
            read_s=read,
            write_s=write,
            rest_s=(self._rest.median or 0.0) + transfer_s,
            bias=math.exp(self._bias.mean or 0.0) if corrected else 1.0,
        )


@dataclass(slots=True)
class Paces:
    """Every model at every place, by how busy it was; what was learned at one load serves the nearest others."""

    _paces: dict[tuple[str, str, int], Pace] = field(default_factory=dict)

    def of(self, digest: str, where: str, busy: int) -> Pace:
        """For learning; `busy` counts answers that are made there at the same time."""
        return self._paces.setdefault((digest, where, _load(busy)), Pace())

    def expect(self, digest: str, where: str, busy: int, work: Work, transfer_s: float) -> Expected | None:
        load = _load(busy)
        known = [key for key in self._paces if key[:2] == (digest, where)]
        for key in sorted(known, key=lambda one: abs(one[2] - load)):
            expected = self._paces[key].expect(work, transfer_s)
            if expected is not None:
                return expected
        return None


class Lengths:
    """How long answers become, and how much of a prompt must really be read: by model, key and the answer's limit.

    An answer that its limit ended would have become longer: with a higher limit it counts as one that reaches that too.
    """

    def __init__(self) -> None:
        self._lengths: dict[tuple[str, ...], deque[tuple[int, bool]]] = {}
        self._fresh: dict[tuple[str, str], Track] = {}

    def learn(self, digest: str, key: str, limit: int, stats: Sequence[RequestStats]) -> None:
        for one in stats:
            length = one.completion_tokens
            for place in _places(digest, key, limit):
                known = self._lengths.pop(place, None) or deque(maxlen=_KEEP)
                self._lengths[place] = known  # those that were learned last are kept
                known.append((length, length >= limit))
            while len(self._lengths) > _MAX_LENGTHS:
                del self._lengths[next(iter(self._lengths))]
            if one.prompt_tokens:
                fresh = 1.0 - one.cached_tokens / one.prompt_tokens
                self._fresh.setdefault((digest, key), Track()).add(fresh)

    def expect(self, digest: str, key: str, limit: int, share: float = 0.5) -> int:
        """Tokens of an answer whose limit is `limit`: what `share` of those like it stay below, else of those of the model, else
        the limit."""
        for place in _places(digest, key, limit):
            known = self._lengths.get(place)
            if known:
                lengths = sorted(limit if cut else min(limit, length) for length, cut in known)
                return max(1, lengths[math.ceil(share * len(lengths)) - 1])
        return limit

    def fresh(self, digest: str, key: str) -> float:
        """The share of a prompt that is not found in the prefix cache."""
        known = self._fresh.get((digest, key))
        return 1.0 if known is None or known.median is None else known.median


def _places(digest: str, key: str, limit: int) -> tuple[tuple[str, ...], ...]:
    """From the most alike to the least."""
    return (digest, key, str(limit)), (digest, key), (digest,)


def _load(busy: int) -> int:
    """Loads by powers of two: 1, 2, 3-4, 5-8, ..."""
    return max(0, busy - 1).bit_length()
