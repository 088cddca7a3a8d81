"""One sample of the device's figures, from the service's own metrics and the hardware. Names and units: docs/telemetry.md.

Rates and percentiles are over the time since the sample before; what did not happen in it has no value, rather than 0.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping

from edgewise.api.deps import ApiDependencies
from edgewise.edge.hardware.protocol import Hardware
from edgewise.wire.fleet import Ack

Series = tuple[str, tuple[tuple[str, str], ...]]
_TOKENS = "edgewise_engine_generated_tokens_total"
_SUMS = {"edgewise_engine_running": "running", "edgewise_engine_waiting": "queue"}


class Meter:
    """Args:
    hardware: Asked in a thread.
    joules: What the machine has drawn so far, None where that is not measured.
    """

    def __init__(
        self, deps: ApiDependencies, hardware: Hardware, joules: Callable[[], float | None] = lambda: None
    ) -> None:
        self._deps = deps
        self._hardware = hardware
        self._joules = joules
        self._drawn: float | None = None
        self._began = deps.clock.monotonic()
        self._before: dict[Series, float] = {}
        self._at: float | None = None
        self._answered: dict[str, float] = defaultdict(float)

    def answered(self, ack: Ack) -> None:
        """A request that came through the fleet has ended: these are no HTTP requests, which are counted elsewhere."""
        names = {"succeeded": "requests_ok", "failed": "requests_failed", "timed-out": "requests_timed_out"}
        if ack.state in names:
            self._answered[names[ack.state]] += 1

    async def sample(self) -> dict[str, float]:
        await self._deps.metrics.scrape(self._deps.models)
        now = {(name, tuple(sorted(labels.items()))): value for name, labels, value in self._samples()}
        seconds = None if self._at is None else self._deps.clock.monotonic() - self._at
        grown = {series: _growth(value, self._before.get(series, 0.0)) for series, value in now.items()}
        self._before, self._at = now, self._deps.clock.monotonic()
        values = {**_gauges(now), **await self._machine(), "uptime_s": round(self._at - self._began, 1)}
        values["ready"] = float(all(model.engine.state == "ready" for model in self._deps.models.pinned()))
        if seconds:  # the first sample only begins the counting
            values |= _rates(grown, seconds) | self._requests(grown) | self._energy(grown)
        self._drawn = self._joules()
        self._answered.clear()
        return values

    def _samples(self) -> list[tuple[str, Mapping[str, str], float]]:
        return [sample for sample in self._deps.metrics.registry.samples() if sample[0].startswith("edgewise_")]

    def _requests(self, grown: Mapping[Series, float]) -> dict[str, float]:
        """Generation requests over HTTP by how they ended, and those of the fleet."""
        counts = {"requests_ok": 0.0, "requests_failed": 0.0, "requests_timed_out": 0.0} | self._answered
        for (name, labels), count in grown.items():
            told = dict(labels)
            if name != "edgewise_requests_total" or told["method"] != "POST" or not told["route"].startswith("/v1/"):
                continue
            kind = _kind(int(told["status"]))
            if kind is not None:
                counts[kind] += count
        return counts

    def _energy(self, grown: Mapping[Series, float]) -> dict[str, float]:
        """Of all that the machine drew meanwhile, idle or not; nothing where no token came."""
        tokens = sum(count for (name, _), count in grown.items() if name == _TOKENS)
        drawn = self._joules()
        if not tokens or drawn is None or self._drawn is None:
            return {}
        return {"joules_per_token": round((drawn - self._drawn) / tokens, 4)}

    async def _machine(self) -> dict[str, float]:
        readings = await asyncio.to_thread(self._hardware.read)
        values: dict[str, float | bool | None] = {
            "memory_used": readings.memory_used,
            "memory_total": readings.memory_total,
            "disk_free": readings.disk_free,
            "temperature_c": readings.temperature_c,
            "power_w": readings.power_w,
            "throttled": readings.throttled,
            "gpu_utilization": readings.gpu_utilization,
            "gpu_memory_used": readings.gpu_memory_used,
            "gpu_memory_total": readings.gpu_memory_total,
            "gpu_clock_mhz": readings.gpu_clock_mhz,
        }
        return {name: float(value) for name, value in values.items() if value is not None}


def _growth(now: float, before: float) -> float:
    return now - before if now >= before else now


def _gauges(now: Mapping[Series, float]) -> dict[str, float]:
    values = dict.fromkeys(_SUMS.values(), 0.0)
    pages: dict[str, float] = defaultdict(float)
    for (name, _), value in now.items():
        if name in _SUMS:
            values[_SUMS[name]] += value
        elif name == "edgewise_governor_level":
            values["governor_level"] = value
        elif name.startswith("edgewise_engine_pages_"):
            pages[name.rpartition("_")[2]] += value
    if pages["total"]:
        values["kv_used"] = round(1.0 - (pages["free"] + pages["cached"]) / pages["total"], 4)
        values["kv_fragmentation"] = round(pages["unfilled"] / pages["total"], 4)
    return values


def _rates(grown: Mapping[Series, float], seconds: float) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for (name, _), count in grown.items():
        sums[name] += count
    values = {"tokens_per_s": round(sums[_TOKENS] / seconds, 3)}
    if prompt := sums["edgewise_engine_prompt_tokens_total"]:
        values["cache_hit"] = round(sums["edgewise_engine_cached_tokens_total"] / prompt, 4)
    for name, metric, share in (
        ("ttft_p50_ms", "edgewise_ttft_seconds_bucket", 0.5),
        ("ttft_p95_ms", "edgewise_ttft_seconds_bucket", 0.95),
        ("ttft_p99_ms", "edgewise_ttft_seconds_bucket", 0.99),
        ("itl_p95_ms", "edgewise_itl_seconds_bucket", 0.95),
        ("itl_p99_ms", "edgewise_itl_seconds_bucket", 0.99),
    ):
        seconds_at = quantile(_buckets(grown, metric), share)
        if seconds_at is not None:
            values[name] = round(1000 * seconds_at, 3)
    return values


def _buckets(grown: Mapping[Series, float], metric: str) -> dict[float, float]:
    """Observations up to each bound, over all models."""
    found: dict[float, float] = defaultdict(float)
    for (name, labels), count in grown.items():
        if name == metric:
            found[float(dict(labels)["le"])] += count
    return dict(found)


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """The quantile of a histogram of cumulative buckets, linear within one, as Prometheus' histogram_quantile; None for an empty
    one. Beyond the last bound it is that bound."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    below, low = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= share * total:
            if math.isinf(bound):
                return low
            inside = buckets[bound] - below
            return low + (bound - low) * ((share * total - below) / inside if inside else 1.0)
        below, low = buckets[bound], bound
    return low


def _kind(status: int) -> str | None:
    """Mistakes of callers count as neither."""
    if status < 400:
        return "requests_ok"
    if status == 504:
        return "requests_timed_out"
    return "requests_failed" if status >= 500 or status == 429 else None
