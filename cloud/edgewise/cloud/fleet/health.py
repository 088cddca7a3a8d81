"""Whether a device that is there is well, by what it said last. Alerts have rules of their own; this is its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def ailment(gauges: Mapping[str, Any], models: Sequence[Mapping[str, Any]]) -> str:
    """Why it is not well; "" if it is. Names of gauges: docs/telemetry.md."""
    if gauges.get("ready") == 0:
        return "it is not ready: no model has answered a token lately"
    if gauges.get("throttled", 0) > 0:
        return "the hardware throttles"
    failed = [model for model in models if model.get("state") == "failed"]
    if failed:
        reason = failed[0].get("reason") or "no reason given"
        return f"the model {failed[0].get('name')} failed: {reason}"[:200]
    return ""
