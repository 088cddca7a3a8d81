"""What a name of a place becomes."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.models.catalog_types import CatalogEntry


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model that can be pulled, every file pinned by size and SHA-256.

    Attributes:
        entry: As if it stood in the catalog.
        left_out: Files at that place that are no part of the model.
    """

    entry: CatalogEntry
    left_out: tuple[str, ...] = ()
