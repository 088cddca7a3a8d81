from __future__ import annotations

import pytest

from edgewise.core.metrics import Metrics


def test_counter_gauge_histogram() -> None:
    metrics = Metrics(process=False)
    requests = metrics.counter("requests", "Requests.", ("route", "code"))
    requests.labels("/v1/models", "200").inc()
    metrics.gauge("running", "Running.").set(3)
    metrics.histogram("ttft_seconds", "Time to first token.", buckets=(0.1, 1.0)).observe(0.5)
    assert metrics.value("edgewise_requests_total", {"route": "/v1/models", "code": "200"}) == 1
    assert metrics.value("edgewise_running") == 3
    assert metrics.value("edgewise_ttft_seconds_bucket", {"le": "0.1"}) == 0
    assert metrics.value("edgewise_ttft_seconds_bucket", {"le": "1.0"}) == 1
    assert metrics.value("edgewise_unknown") is None


def test_two_services_in_one_process_do_not_collide() -> None:
    first, second = Metrics(), Metrics()
    first.counter("requests", "Requests.").inc()
    second.counter("requests", "Requests.")
    assert second.value("edgewise_requests_total") == 0


def test_a_name_is_used_once() -> None:
    metrics = Metrics(process=False)
    metrics.gauge("running", "Running.")
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.gauge("running", "Running.")


def test_formats() -> None:
    metrics = Metrics()
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    assert b"process_resident_memory_bytes" in body
    body, content_type = metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_a_tally_reads_as_a_histogram() -> None:
    metrics = Metrics(process=False)
    tally = metrics.tally("itl_seconds", "Between tokens.", "model", buckets=(0.1, 1.0))
    tally.of("a").add([0.05, 0.1, 0.5])
    tally.of("a").add((2.0,))
    tally.of("b").add(())
    plain = Metrics(process=False)
    histogram = plain.histogram("itl_seconds", "Between tokens.", ("model",), buckets=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 2.0):
        histogram.labels("a").observe(value)
    histogram.labels("b")
    theirs = [one for one in plain.samples() if not one[0].endswith("_created")]
    assert sorted(metrics.samples(), key=str) == sorted(theirs, key=str)
    assert b'edgewise_itl_seconds_bucket{le="+Inf",model="a"} 4.0' in metrics.render()[0]
