"""What the samples of a run amount to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from edgewise.bench.load import Run
from edgewise.bench.request import Sample

PERCENTILES: Final = (50, 95, 99)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` percent lie, interpolated linearly between neighbours; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(run: Run) -> dict[str, Any]:
    """The figures of a run, JSON-able; seconds, and tokens as the server's usage counts them.

    Returns:
        `requests` (counts, errors by code), `time_to_first_token_s`, `between_chunks_s` (arrivals of pieces),
        `time_per_output_token_s` (of each request: first to last piece by its tokens but one), `latency_s`, each with mean,
        p50, p95, p99, max; `tokens` (counts and lengths), `per_second` (by the wall clock from the start to the last end) and
        `late_s` (how late this program itself was). A figure without samples is null.
    """
    good = [sample for sample in run.samples if sample.error is None]
    counted = [sample for sample in good if sample.answer_tokens is not None]
    wall = max(run.ended - run.began, 1e-9)
    prompt = sum(sample.prompt_tokens or 0 for sample in counted)
    answer = sum(sample.answer_tokens or 0 for sample in counted)
    whole = bool(counted) and len(counted) == len(good)
    return {
        "wall_s": round(wall, 4),
        "requests": _requests(run),
        "time_to_first_token_s": spread([sample.first_s for sample in good if sample.first_s is not None]),
        "between_chunks_s": spread([gap for sample in good for gap in sample.gaps]),
        "time_per_output_token_s": spread([pace for sample in counted if (pace := _pace(sample)) is not None]),
        "latency_s": spread([sample.total_s for sample in good]),
        "tokens": {
            "prompt": prompt if whole else None,
            "cached_prompt": sum(sample.cached_tokens for sample in counted) if whole else None,
            "answer": answer if whole else None,
            "prompt_per_request": spread([float(sample.prompt_tokens or 0) for sample in counted]),
            "answer_per_request": spread([float(sample.answer_tokens or 0) for sample in counted]),
            "per_piece": _ratio(answer, sum(len(sample.arrivals) for sample in counted)),
        },
        "per_second": {
            "requests": round(len(good) / wall, 4),
            "answer_tokens": round(answer / wall, 3) if whole else None,
            "prompt_tokens": round(prompt / wall, 3) if whole else None,
        },
        "late_s": spread([sample.sent - sample.scheduled for sample in run.samples]),
    }


def _requests(run: Run) -> dict[str, Any]:
    errors = Counter(sample.error for sample in run.samples if sample.error is not None)
    return {
        "ended": len(run.samples),
        "good": len(run.samples) - sum(errors.values()),
        "failed": sum(errors.values()),
        "unfinished": run.started - len(run.samples),
        "errors": dict(sorted(errors.items())),
    }


def _pace(sample: Sample) -> float | None:
    tokens = sample.answer_tokens or 0
    if tokens < 2 or len(sample.arrivals) < 2:  # one piece says nothing about the time between tokens
        return None
    return (sample.arrivals[-1] - sample.arrivals[0]) / (tokens - 1)


def spread(values: Sequence[float]) -> Mapping[str, float] | None:
    """Mean, percentiles and the largest; None of nothing."""
    if not values:
        return None
    found = {"mean": sum(values) / len(values)}
    found |= {f"p{share}": value for share in PERCENTILES if (value := percentile(values, share)) is not None}
    found["max"] = max(values)
    return {name: round(value, 6) for name, value in found.items()}


def _ratio(above: int, below: int) -> float | None:
    return round(above / below, 3) if below else None
