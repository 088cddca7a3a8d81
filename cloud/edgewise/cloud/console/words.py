"""Numbers, sizes and values as people read them, and how the values of telemetry are called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.cloud.console.design import Tone


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value of telemetry: its label, its unit, by what it is multiplied to be shown, digits, where its axis begins, and from
    where it is a warning and bad."""

    label: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 1
    floor: float | None = 0.0
    warn: float | None = None
    bad: float | None = None

    def text(self, value: float) -> str:
        shown = f"{value * self.scale:,.{self.digits}f}".replace(",", "\u202f")
        return f"{shown}\u00a0{self.unit}" if self.unit else shown

    def tone(self, value: float) -> Tone:
        if self.bad is not None and value >= self.bad:
            return "bad"
        return "warn" if self.warn is not None and value >= self.warn else "ok"


GAUGES: Mapping[str, Gauge] = {
    "tokens_per_s": Gauge("Tokens", "/s"),
    "requests_per_s": Gauge("Requests", "/s", digits=2),
    "ttft_p50_ms": Gauge("Time to first token, p50", "ms", digits=0),
    "ttft_p99_ms": Gauge("Time to first token, p99", "ms", digits=0),
    "queue_depth": Gauge("Waiting requests", digits=0),
    "memory_used_ratio": Gauge("Memory", "%", scale=100.0, digits=0, warn=0.8, bad=0.9),
    "temperature_c": Gauge("Temperature", "\u00b0C", digits=0, floor=None, warn=80.0, bad=90.0),
    "power_w": Gauge("Power", "W"),
}


def gauge_of(name: str) -> Gauge:
    """A value that is not known here is shown by its own name; its unit is at the end of that."""
    if name in GAUGES:
        return GAUGES[name]
    label = name.replace("_", " ").replace(".", ": ").capitalize()
    return Gauge(label, digits=2, floor=None)


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
