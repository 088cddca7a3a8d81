"""Small files that had to be read in order to know their digest; they need not be fetched again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from edgewise.models.blobs import PartialFile
from edgewise.models.progress import Progress, ProgressSink


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """The bytes themselves, with the label of where they came from."""

    network: ClassVar[bool] = False

    label: str
    data: bytes = field(repr=False)

    def scratch(self) -> Mapping[str, int]:
        return {}

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:  # noqa: ARG002 - the protocol's
        sink.write(self.data[sink.offset :])
        progress(Progress("download", sink.file.name, sink.offset, sink.file.size))
        sink.finish()
