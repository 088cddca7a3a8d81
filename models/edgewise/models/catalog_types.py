"""What a catalog entry is."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.sources.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFile:
    """One file of a model and the places that have it, tried in this order."""

    file: StoredFile
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A model that can be pulled: what it is, and every file pinned by size and SHA-256."""

    name: str
    info: ModelInfo
    files: tuple[CatalogFile, ...]
    description: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(item.file.size for item in self.files)

    @property
    def source(self) -> str:
        """The first source of every file, each once."""
        return " ".join(dict.fromkeys(item.sources[0].label for item in self.files))
