"""What becomes of the document that a device already has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """`new` laid over `old` as JSON Merge Patch does it (RFC 7396: null removes), except that lists of things with names, as
    the models of a device, are merged by name: a rollout of one model leaves the others alone."""
    result = dict(old or {})
    for key, value in new.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = merged(before if isinstance(before, Mapping) else None, value)
        elif before is not None and _named(value) and _named(before):
            fresh = {item["name"]: item for item in value}
            kept = [fresh.pop(item["name"], item) for item in before]
            result[key] = kept + list(fresh.values())
        else:
            result[key] = value
    return result


def _named(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) and "name" in item for item in value)
