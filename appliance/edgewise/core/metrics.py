"""Metrics in Prometheus' text format from a registry of our own, so that two services in one process do not collide."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

# Seconds; from one CPU decode step to a long generation.
LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Tally:
    """Counts of values up to each bound, and their sum."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            self.counts[bisect_left(self._bounds, value)] += 1
            self.sum += value


class Tallies(Collector):
    """One `Tally` for each value of a label, published as a histogram."""

    def __init__(self, name: str, help: str, label: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._label = label
        self._bounds = tuple(bounds)
        self._tallies: dict[str, Tally] = {}

    def of(self, value: str) -> Tally:
        return self._tallies.setdefault(value, Tally(self._bounds))

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._help, labels=[self._label])
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for value, tally in self._tallies.items():
            family.add_metric([value], list(zip(names, map(float, accumulate(tally.counts)), strict=True)), tally.sum)
        yield family


class Metrics:
    """The metrics of one service. Names get the prefix `edgewise_`.

    Label values must come from a closed set (routes, states, codes), never from a client: each value is a time series
    that lives as long as the process.
    """

    def __init__(self, *, process: bool = True) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        if process:
            ProcessCollector(registry=self._registry)

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, help, labels, namespace="edgewise", registry=self._registry)

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, help, labels, namespace="edgewise", registry=self._registry)

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = LATENCY_BUCKETS
    ) -> Histogram:
        return Histogram(name, help, labels, namespace="edgewise", registry=self._registry, buckets=buckets)

    def tally(self, name: str, help: str, label: str, *, buckets: Sequence[float]) -> Tallies:
        """A histogram for values that come too often and too many together for one call each; for one thread."""
        tallies = Tallies(f"edgewise_{name}", help, label, buckets)
        self._registry.register(tallies)
        return tallies

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics as (body, content type), in the format that an Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Every sample now, as (full name, labels, value)."""
        for family in self._registry.collect():
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    def value(self, name: str, labels: dict[str, str] | None = None) -> float | None:
        """Current value of one sample by its full name, e.g. `edgewise_requests_total`; None if there is none."""
        return self._registry.get_sample_value(name, labels)
