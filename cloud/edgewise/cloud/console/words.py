"""Numbers, sizes and values as people read them, and how the values of telemetry are called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.cloud.console.design import Tone


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value of telemetry (docs/telemetry.md): its label, its unit, by what it is multiplied to be shown, digits, and where its
    axis begins."""

    label: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 1
    floor: float | None = 0.0

    def text(self, value: float) -> str:
        shown = f"{value * self.scale:,.{self.digits}f}".replace(",", "\u202f")
        return f"{shown}\u00a0{self.unit}" if self.unit else shown


_MIB, _GIB = 1 / 1024**2, 1 / 1024**3
GAUGES: Mapping[str, Gauge] = {
    "tokens_per_s": Gauge("Tokens a second", "/s"),
    "ttft_p50_ms": Gauge("Time to first token, p50", "ms", digits=0),
    "ttft_p95_ms": Gauge("Time to first token, p95", "ms", digits=0),
    "itl_p95_ms": Gauge("Between tokens, p95", "ms"),
    "running": Gauge("Running requests", digits=0),
    "queue": Gauge("Waiting requests", digits=0),
    "memory_used": Gauge("Memory used", "GiB", scale=_GIB),
    "kv_used": Gauge("KV pages used", "%", scale=100.0, digits=0),
    "cache_hit": Gauge("Prompt tokens from cache", "%", scale=100.0, digits=0),
    "temperature_c": Gauge("Temperature", "\u00b0C", digits=0, floor=None),
    "power_w": Gauge("Power", "W"),
    "disk_free": Gauge("Disk free", "GiB", scale=_GIB, digits=0),
    "gpu_utilization": Gauge("Accelerator in use", "%", scale=100.0, digits=0),
    "governor_level": Gauge("Governor: 0 normal to 3 critical", digits=0),
    "ttft_p99_ms": Gauge("Time to first token, p99", "ms", digits=0),
    "itl_p99_ms": Gauge("Between tokens, p99", "ms"),
    "kv_fragmentation": Gauge("KV room lost inside pages", "%", scale=100.0, digits=0),
    "memory_total": Gauge("Memory of the machine", "GiB", scale=_GIB),
    "gpu_memory_used": Gauge("Accelerator's memory used", "MiB", scale=_MIB, digits=0),
    "gpu_memory_total": Gauge("Accelerator's memory", "MiB", scale=_MIB, digits=0),
    "gpu_clock_mhz": Gauge("Accelerator's clock", "MHz", digits=0),
    "joules_per_token": Gauge("Energy a token", "J", digits=2),
    "throttled": Gauge("Throttling by the hardware", digits=0),
    "ready": Gauge("Readiness", digits=0),
    "uptime_s": Gauge("Service up for", "h", scale=1 / 3600),
    "requests_ok": Gauge("Requests that ended well", digits=0),
    "requests_failed": Gauge("Requests that failed", digits=0),
    "requests_timed_out": Gauge("Requests that timed out", digits=0),
}
SWITCHES = ("throttled", "ready")
"""Values that are 0 or 1."""
PLAIN = tuple(GAUGES)[:14]
"""Those whose charts a device's page shows without being asked."""


def gauge_of(name: str) -> Gauge:
    """A value that is not known here is shown by its own name; its unit is at the end of that."""
    if name in GAUGES:
        return GAUGES[name]
    label = name.replace("_", " ").replace(".", ": ").capitalize()
    return Gauge(label, digits=2, floor=None)


def memory_share(gauges: Mapping[str, float]) -> float | None:
    """Of the memory that is used; None where a device has not said."""
    used, total = gauges.get("memory_used"), gauges.get("memory_total")
    return used / total if used is not None and total else None


def memory_tone(share: float) -> Tone:
    """By the marks of the device's own memory ledger."""
    return "bad" if share >= 0.9 else "warn" if share >= 0.8 else "ok"


def number(value: float) -> str:
    """With thin spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\u202f")


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f}\u00a0{unit}" if unit == "B" else f"{count:.1f}\u00a0{unit}"
        count /= 1024
    return f"{count:.1f}\u00a0TiB"


def span(seconds: float) -> str:
    """A duration in its largest fitting unit."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length or (seconds >= length and seconds % length == 0):
            return f"{seconds / length:.0f}\u00a0{unit}"
    return f"{seconds:.0f}\u00a0s" if seconds >= 10 else f"{seconds:.1f}\u00a0s"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def value_text(value: Any) -> str:
    """A value of a document: texts bare, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def pretty(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Difference:
    """A line of a diff. `left` or `right` None: not there. `word`: same, changed, only desired, only reported."""

    path: str
    left: Any
    right: Any
    word: str


_ABSENT = object()


def differences(desired: Mapping[str, Any], reported: Mapping[str, Any]) -> Sequence[Difference]:
    """Desired against reported, by path: what differs first. Lists are compared whole."""
    left, right = dict(_flat(desired)), dict(_flat(reported))
    lines = []
    for path in sorted(left.keys() | right.keys()):
        wanted, there = left.get(path, _ABSENT), right.get(path, _ABSENT)
        if wanted is _ABSENT:
            word = "only reported"
        elif there is _ABSENT:
            word = "only desired"
        else:
            word = "same" if wanted == there else "changed"
        lines.append(Difference(path, None if wanted is _ABSENT else wanted, None if there is _ABSENT else there, word))
    order = {"changed": 0, "only desired": 0, "only reported": 1, "same": 2}
    return sorted(lines, key=lambda line: (order[line.word], line.path))


def _flat(document: Mapping[str, Any], prefix: str = "") -> Sequence[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in document.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            found.extend(_flat(value, path))
        else:
            found.append((path, value))
    return found
