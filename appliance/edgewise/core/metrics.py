"""Metrics in Prometheus' text format from a registry of our own, so that two services in one process do not collide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

# Seconds; from one CPU decode step to a long generation.
LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


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
