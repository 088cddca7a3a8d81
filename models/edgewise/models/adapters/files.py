"""Where an adapter lies. Imports nothing: requests carry it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFiles:
    """An adapter on disk; crosses the process border within requests.

    Attributes:
        name: What callers call it.
        digest: "sha256:<hex>" of its manifest; part of the names of KV pages.
        config, weights: Paths of its two files.
    """

    name: str
    digest: str
    config: str
    weights: str
