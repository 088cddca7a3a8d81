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
    """A model that can be pulled: what it is, and every file pinned by size and SHA-256.

    Attributes:
        name: What it will be called.
        info: What is known about it.
        files: Its files.
        description: A sentence for people.
        notice: What whoever pulls it must know: it is shown with the pull.
        origin: The place that the user named, e.g. "hf:owner/name@commit"; "" for entries of the catalog.
        inspect: Whether what `info` leaves open is to be read from the files once they are there.
    """

    name: str
    info: ModelInfo
    files: tuple[CatalogFile, ...]
    description: str = ""
    notice: str = ""
    origin: str = ""
    inspect: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(item.file.size for item in self.files)

    @property
    def source(self) -> str:
        """For the manifest: the origin, or else the first source of every file, each once."""
        return self.origin or " ".join(dict.fromkeys(item.sources[0].label for item in self.files))
