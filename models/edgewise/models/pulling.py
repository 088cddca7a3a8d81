"""Brings the files of a catalog entry into the blobs, from whichever of their sources has them."""

from __future__ import annotations

from edgewise.core.errors import DigestMismatch, SourceUnavailable
from edgewise.models.blobs import Blobs
from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.disk import make_dirs
from edgewise.models.progress import ProgressSink
from edgewise.models.sources.source import Offline, Source


class Puller:
    """Fetches into `blobs`; needs the store's lock for everything but `missing`, `bytes_needed` and `require_sources`.

    Args:
        blobs: Where the files go.
        offline: Whether sources that need a network are left alone.
    """

    def __init__(self, blobs: Blobs, *, offline: bool = False) -> None:
        self._blobs = blobs
        self._offline = offline
        self._work = blobs.partial / "work"

    def missing(self, entry: CatalogEntry) -> list[CatalogFile]:
        """The files of the entry that are not there, or are cut."""
        return [item for item in entry.files if not self._blobs.has(item.file)]

    def require_sources(self, entry: CatalogEntry) -> None:
        """Raises Offline, before anything is fetched, where a missing file has no source that works without a network."""
        for item in self.missing(entry):
            if not self._usable(item):
                raise Offline(f"{item.file.name} ({item.sources[0].label})")

    def bytes_needed(self, entry: CatalogEntry) -> int:
        """Bytes of disk that `fetch` still needs at its peak: the rest of the files, and what sources lay beside them."""
        missing = self.missing(entry)
        rest = sum(item.file.size - self._blobs.partial_size(item.file) for item in missing)
        scratch = {
            name: size
            for item in missing
            for source in self._usable(item)[:1]
            for name, size in source.scratch().items()
        }
        wanted = [size for name, size in scratch.items() if not (self._work / name).is_file()]
        # pip holds its own copy of one package until that has been moved to its place.
        return rest + sum(wanted) + max(wanted, default=0)

    def fetch(self, entry: CatalogEntry, progress: ProgressSink) -> None:
        """Fetches what is missing, continuing what an earlier attempt began; afterwards all files are blobs.

        Raises:
            SourceUnavailable: No source has a file, or networks are off and it needs one.
            DigestMismatch: A source has another file than the entry states.
            StorageError: The disk refuses.
        """
        self.require_sources(entry)
        usable = {name for item in entry.files for source in item.sources for name in source.scratch()}
        self._blobs.sweep(self._work, frozenset(usable))
        make_dirs(self._work)
        for item in self.missing(entry):
            self._fetch_file(item, progress)
        self._blobs.sweep(self._work, frozenset())

    def abandon(self, entry: CatalogEntry) -> None:
        """Removes what unfinished attempts at the entry left."""
        self._blobs.sweep(self._work, frozenset())
        for item in entry.files:
            self._blobs.open_partial(item.file, lambda _: None).discard()

    def _usable(self, item: CatalogFile) -> tuple[Source, ...]:
        return tuple(source for source in item.sources if not (self._offline and source.network))

    def _fetch_file(self, item: CatalogFile, progress: ProgressSink) -> None:
        failures: list[str] = []
        for source in self._usable(item):
            try:
                self._fetch_from(source, item, progress)
            except SourceUnavailable as error:
                failures.append(f"{source.label}: {error.message}")
            else:
                return
        raise SourceUnavailable(f"No source has {item.file.name} now. {' '.join(failures)}")

    def _fetch_from(self, source: Source, item: CatalogFile, progress: ProgressSink) -> None:
        partial = self._blobs.open_partial(item.file, progress)
        try:
            with partial:
                source.fetch(partial, self._work, progress)
        except DigestMismatch:
            if not partial.resumed:
                raise
            # The beginning came earlier, maybe from another version of the file or a write cut by power loss: once anew.
            with partial:
                partial.reset()
                source.fetch(partial, self._work, progress)
        self._blobs.commit(partial.path, item.file)
