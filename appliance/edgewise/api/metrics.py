"""What /metrics publishes: requests, latencies, tokens, and the engine's gauges and counters at the moment of the scrape."""

from __future__ import annotations

import asyncio

from prometheus_client import Counter, Gauge

from edgewise.api.observed import in_time
from edgewise.api.realtime.metrics import VoiceMetrics
from edgewise.core.errors import EdgewiseError
from edgewise.core.metrics import Metrics
from edgewise.engine.api import EngineStats
from edgewise.pipeline.held import FULL, HeldBytes
from edgewise.pipeline.model import Models, Observed, PoolStatus
from edgewise.pipeline.receipts import Usage

RTF_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 10.0)
ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

_GAUGES = {
    "running": "Sequences being computed",
    "waiting": "Sequences in the queue",
    "pages_total": "Pages of the KV cache",
    "pages_free": "Pages of the KV cache that are free",
    "pages_cached": "Pages of the KV cache kept for their prefix",
    "pages_unfilled": "Room behind the last token of running sequences, in pages of the KV cache",
    "spill_bytes": "Bytes of host memory promised to KV pages of preempted sequences",
    "spill_limit_bytes": "Bytes of host memory that KV pages of preempted sequences may have",
    "host_pages": "KV pages in host memory",
    "host_bytes": "Bytes of KV pages in host memory",
    "host_limit_bytes": "Bytes that KV pages in host memory may have at present",
    "disk_pages": "KV pages on disk that this engine can use",
    "disk_bytes": "Bytes of all KV pages on disk",
    "disk_off": "1 while the disk takes no KV pages",
    "encoder_cache_items": "Pictures, films and sounds of prompts whose encoding is kept",
    "encoder_cache_bytes": "Bytes of encoded media that are kept",
    "encoder_cache_limit_bytes": "Bytes of encoded media that may be kept",
    "adapters": "Adapters in memory",
    "adapter_bytes": "Bytes of adapters in memory",
    "devices": "Devices that compute the model together",
    "rss_bytes": "Resident memory of the engine's processes",
}
_COUNTERS = {
    "steps": "Steps of the engine",
    "encoder_seconds": "Seconds that encoders took: texts to vectors, eyes, ears and voices",
    "prompt_tokens": "Prompt tokens taken",
    "cached_tokens": "Prompt tokens found in the prefix cache",
    "generated_tokens": "Tokens generated",
    "proposed_tokens": "Tokens guessed and computed",
    "accepted_tokens": "Guessed tokens that were right",
    "preemptions": "Sequences preempted",
    "aborted": "Sequences aborted",
    "spilled_pages": "KV pages of preempted sequences moved to host memory",
    "unspilled_pages": "KV pages of preempted sequences moved back",
    "host_hits": "KV pages brought back from host memory",
    "host_misses": "KV pages looked for in host memory and not found",
    "disk_hits": "KV pages read from disk",
    "disk_misses": "KV pages looked for on disk and not found",
    "disk_refused": "Files of KV pages that did not pass their checks",
    "encoder_cache_hits": "Media that a prompt came to and that were encoded already",
    "encoder_cache_misses": "Media that had to be encoded",
    "encoder_cache_evictions": "Encoded media that were forgotten for lack of room",
    "disk_dropped": "KV pages that were not written to disk",
}


class ApiMetrics:
    """The service's metrics; also a `RunObserver`'s source of histograms."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self.registry = metrics or Metrics()
        one = self.registry
        self.requests = one.counter("requests", "HTTP requests answered", ("route", "method", "status"))
        self.in_flight = one.gauge("requests_in_flight", "Generation requests in progress")
        self.ttft = one.histogram("ttft_seconds", "From a request's start to its first token", ("model",))
        self.itl = one.tally("itl_seconds", "Between tokens of one sequence", "model", buckets=ITL_BUCKETS)
        self.e2e = one.histogram("e2e_seconds", "From a generation request's start to its end", ("model",))
        self.real_time_factor = one.histogram(
            "transcription_real_time_factor",
            "Time that a transcription took over the length of its sound",
            buckets=RTF_BUCKETS,
        )
        self.first_audio = one.histogram(
            "chat_first_audio_seconds", "From a request to the first sound of its spoken answer"
        )
        self.speaking_factor = one.histogram(
            "chat_speech_real_time_factor",
            "Time that a spoken answer took over the length of its sound",
            buckets=RTF_BUCKETS,
        )
        self.playback_gap = one.histogram(
            "chat_playback_gap_seconds", "Longest time in which a spoken answer had nothing to play"
        )
        self.speech_first = one.histogram(
            "speech_first_sound_seconds", "From a request for speech to the samples of its first sentence"
        )
        self.speech_factor = one.histogram(
            "speech_real_time_factor", "Computing time of speech over its length", buckets=RTF_BUCKETS
        )
        self.voice = VoiceMetrics(one)
        self.prompt_tokens = one.counter("prompt_tokens", "Prompt tokens of answered requests", ("model",))
        self.completion_tokens = one.counter("completion_tokens", "Tokens of answers", ("model",))
        self.engine_up = one.gauge("engine_up", "1 if the engine is ready", ("model",))
        self._gauges = {name: one.gauge(f"engine_{name}", text, ("model",)) for name, text in _GAUGES.items()}
        self._counters = {name: one.counter(f"engine_{name}", text, ("model",)) for name, text in _COUNTERS.items()}
        self.media_booked = one.gauge("media_booked_bytes", "Memory that media of requests hold decoded, or are to")
        self.media_limit = one.gauge("media_limit_bytes", "Memory that media of all requests may hold decoded")
        self.media_refused = one.counter(
            "media_refused", "Media that were refused for lack of memory, by what was full", ("full",)
        )
        for full in FULL:
            self.media_refused.labels(full)
        self._held: HeldBytes | None = None
        self._refused: dict[str, int] = {}
        self.model_memory = one.gauge("model_memory_bytes", "Memory that the model's engine may book", ("model",))
        self.pool_budget = one.gauge("pool_budget_bytes", "Memory that all engines may book; 0 without a bound")
        self.loads = one.counter("model_loads", "Models loaded")
        self.evictions = one.counter("model_evictions", "Models unloaded or made smaller for another one")
        self._last: dict[str, EngineStats] = {}
        self._granted: set[str] = set()
        self._pool = (0, 0)

    def answered(self, model: str, usage: Usage, seconds: float) -> None:
        """A generation request has ended, well or not."""
        self.e2e.labels(model).observe(seconds)
        self.prompt_tokens.labels(model).inc(usage.prompt_tokens)
        self.completion_tokens.labels(model).inc(usage.completion_tokens)

    async def scrape(self, models: Models) -> None:
        """Ask every engine for its numbers; one that does not answer shows as down and keeps its last numbers."""
        await asyncio.gather(*(self._scrape(name, engine) for name, engine in models.observed().items()))
        self._publish_pool(models.status())
        self._publish_media()

    def watch_media(self, held: HeldBytes) -> None:
        """Publish this ledger of media."""
        self._held = held

    def _publish_media(self) -> None:
        if self._held is None:
            return
        self.media_booked.set(self._held.used)
        self.media_limit.set(self._held.limit)
        for full, count in self._held.refused.items():
            self.media_refused.labels(full).inc(count - self._refused.get(full, 0))
            self._refused[full] = count

    async def _scrape(self, name: str, engine: Observed) -> None:
        self.engine_up.labels(name).set(engine.state == "ready")
        try:
            stats = await in_time(engine.stats())
        except EdgewiseError:
            self.engine_up.labels(name).set(0)
            return
        self._publish(name, stats)

    def _publish_pool(self, pool: PoolStatus) -> None:
        granted = dict.fromkeys(self._granted, 0)
        for model in pool.models:
            granted[model.name] = granted.get(model.name, 0) + model.memory_bytes
        for name, size in granted.items():
            self.model_memory.labels(name).set(size)
        self._granted = set(granted)
        self.pool_budget.set(pool.budget_bytes or 0)
        self.loads.inc(pool.loads - self._pool[0])
        self.evictions.inc(pool.evictions - self._pool[1])
        self._pool = (pool.loads, pool.evictions)

    def _publish(self, name: str, stats: EngineStats) -> None:
        last = self._last.get(name, EngineStats())
        gauge: Gauge
        counter: Counter
        for field, gauge in self._gauges.items():
            gauge.labels(name).set(getattr(stats, field))
        for field, counter in self._counters.items():
            now, before = getattr(stats, field), getattr(last, field)
            counter.labels(name).inc(now - before if now >= before else now)  # an engine that restarted counts from 0
        self._last[name] = stats
