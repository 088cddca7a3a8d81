"""Which models the devices of a fleet hold, counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgewise.cloud.fleet.views import ModelUseView

MOST = 500


def count_models(held: Iterable[Sequence[Mapping[str, Any]]]) -> list[ModelUseView]:
    """Models by name and digest, most used first; `held` has those of each device (`wire.fleet.ModelState` as JSON)."""
    counts: dict[tuple[str, str | None], list[int]] = {}
    for models in held:
        for model in models:
            if model.get("state") == "removed":
                continue
            count = counts.setdefault((str(model["name"]), model.get("digest")), [0, 0, 0])
            count[0] += 1
            count[1] += bool(model.get("loaded"))
            count[2] += model.get("state") == "failed"
    ordered = sorted(counts.items(), key=lambda one: (-one[1][0], one[0][0], one[0][1] or ""))
    return [
        ModelUseView(name=name, digest=digest, devices=devices, loaded=loaded, failed=failed)
        for (name, digest), (devices, loaded, failed) in ordered[:MOST]
    ]
