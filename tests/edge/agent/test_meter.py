"""Figures from histograms and counters: what happened since the sample before."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.api.deps import ApiDependencies
from edgewise.edge.agent.telemetry.meter import Meter, quantile
from edgewise.edge.hardware.protocol import Readings
from edgewise.pipeline.model import Models
from edgewise.wire.fleet import Ack
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model

BOUNDS = (0.1, 0.5, 1.0, math.inf)


class Bench:
    """A machine whose readings a test sets."""

    def __init__(self) -> None:
        self.readings = Readings(memory_used=3, memory_total=8, disk_free=100)

    def describe(self) -> dict[str, object]:
        return {}

    def read(self) -> Readings:
        return self.readings


@given(st.lists(st.floats(0.001, 0.999), min_size=1, max_size=200), st.sampled_from((0.5, 0.95)))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    buckets = {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}
    found = quantile(buckets, share)
    assert found is not None
    true = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    low, high = next((a, b) for a, b in zip((0.0, *BOUNDS), BOUNDS, strict=False) if a < true <= b)
    assert low <= found <= high


def test_an_empty_histogram_has_none_and_the_last_bound_is_the_most() -> None:
    assert quantile({}, 0.5) is None
    assert quantile(dict.fromkeys(BOUNDS, 0.0), 0.5) is None
    assert quantile({0.1: 0.0, 0.5: 0.0, 1.0: 0.0, math.inf: 4.0}, 0.5) == 1.0


async def test_counts_are_those_since_the_sample_before() -> None:
    deps = ApiDependencies(models=Models([fake_model()]))
    meter = Meter(deps, Bench())
    first = await meter.sample()
    assert "tokens_per_s" not in first
    assert (first["memory_used"], first["memory_total"], first["disk_free"]) == (3, 8, 100)
    assert "temperature_c" not in first  # what is not known is left out
    for status, route in (("200", "/v1/completions"), ("504", "/v1/completions"), ("503", "/v1/responses")):
        deps.metrics.requests.labels(route, "POST", status).inc()
    deps.metrics.requests.labels("/v1/completions", "POST", "400").inc()
    deps.metrics.requests.labels("/v1/models", "GET", "200").inc()
    meter.answered(Ack(state="succeeded"))
    meter.answered(Ack(state="rejected"))
    deps.metrics.ttft.labels("tiny").observe(0.02)
    second = await meter.sample()
    names = ("requests_ok", "requests_failed", "requests_timed_out")
    assert [second[name] for name in names] == [2, 1, 1]
    assert second["ttft_p50_ms"] == pytest.approx(17.5, abs=8)
    assert second["ttft_p99_ms"] > second["ttft_p95_ms"] > second["ttft_p50_ms"]
    third = await meter.sample()
    assert [third[name] for name in names] == [0, 0, 0]
    assert "ttft_p50_ms" not in third


async def test_fragmentation_is_a_share_of_the_pools_of_all_models() -> None:
    one, other = FakeEngine(), FakeEngine()
    meter = Meter(ApiDependencies(models=Models([fake_model(one), fake_model(other, name="other")])), Bench())
    assert (await meter.sample())["kv_fragmentation"] == 0.0
    one.pages_unfilled = 0.25 * (one.num_pages + other.num_pages)
    assert (await meter.sample())["kv_fragmentation"] == 0.25


async def test_the_accelerator_is_told_and_energy_is_of_the_tokens_since() -> None:
    deps = ApiDependencies(models=Models([fake_model()]))
    bench, drawn = Bench(), [100.0]
    bench.readings = replace(
        bench.readings,
        gpu_utilization=0.5,
        gpu_memory_used=4,
        gpu_memory_total=16,
        gpu_clock_mhz=900.0,
        throttled=False,
    )
    meter = Meter(deps, bench, lambda: drawn[0])
    first = await meter.sample()
    assert [first[name] for name in ("gpu_utilization", "gpu_memory_used", "gpu_memory_total", "gpu_clock_mhz")] == [
        0.5,
        4.0,
        16.0,
        900.0,
    ]
    assert first["throttled"] == 0.0
    assert "joules_per_token" not in first
    drawn[0] = 130.0
    assert "joules_per_token" not in await meter.sample()  # no token came
    deps.metrics._counters["generated_tokens"].labels("tiny").inc(20)
    drawn[0] = 150.0
    assert (await meter.sample())["joules_per_token"] == 1.0


async def test_the_level_of_the_governor_is_told() -> None:
    deps = ApiDependencies(models=Models([fake_model()]))
    meter = Meter(deps, Bench())
    assert "governor_level" not in await meter.sample()
    deps.metrics.registry.gauge("governor_level", "of a governor").set(2)
    assert (await meter.sample())["governor_level"] == 2.0


async def test_it_is_ready_while_the_engine_of_every_pinned_model_runs() -> None:
    engine = FakeEngine()
    meter = Meter(ApiDependencies(models=Models([fake_model(), fake_model(engine, name="other")])), Bench())
    assert (await meter.sample())["ready"] == 1.0
    engine.state = "restarting"
    assert (await meter.sample())["ready"] == 0.0
