"""`packaged:` sources: a model file that ships inside Edgewise itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from edgewise.models.blobs import PartialFile
from edgewise.models.progress import ProgressSink
from edgewise.models.sources.file import FileSource

ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class PackagedSource:
    """The file at `place`, relative to `edgewise/models`, wherever that is installed."""

    network: ClassVar[bool] = False

    place: str

    @property
    def label(self) -> str:
        return f"packaged:{self.place}"

    def scratch(self) -> Mapping[str, int]:
        return {}

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:
        FileSource(ROOT / self.place).fetch(sink, work, progress)
