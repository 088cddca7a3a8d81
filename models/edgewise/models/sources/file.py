"""`file:` sources: a model file that already lies on this machine, a USB stick or a mounted share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from edgewise.core.errors import SourceUnavailable
from edgewise.models.blobs import PartialFile
from edgewise.models.disk import CHUNK
from edgewise.models.progress import Progress, ProgressSink


@dataclass(frozen=True, slots=True)
class FileSource:
    """A copy of the file at `path` (absolute); the original is never changed or linked."""

    network: ClassVar[bool] = False

    path: Path

    @property
    def label(self) -> str:
        return f"file://{quote(str(self.path))}"

    def scratch(self) -> Mapping[str, int]:
        return {}

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:  # noqa: ARG002 - the protocol's
        if not self.path.is_file():
            raise SourceUnavailable(f"{self.path} is not a file that can be read: is the medium mounted?")
        try:
            with self.path.open("rb") as file:
                file.seek(sink.offset)
                while data := file.read(CHUNK):
                    sink.write(data)
                    progress(Progress("copy", sink.file.name, sink.offset, sink.file.size))
        except OSError as error:
            raise SourceUnavailable(f"{self.path} cannot be read: {error.strerror}.") from error
        sink.finish()
