"""Sources whose file is made of another one as it arrives: the same bytes every time, so it is pinned like any file."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, cast

from edgewise.models.blobs import PartialFile
from edgewise.models.manifest import StoredFile
from edgewise.models.progress import Progress, ProgressSink
from edgewise.models.sources.source import Source


class Converter(Protocol):
    """What makes a file of another: yields its bytes, piece by piece, without state and without chance."""

    def __call__(self, path: Path, name: str) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedSource:
    """The file `name` that a converter makes of one file of another source.

    Attributes:
        source: Where the original is.
        original: What it is; it lies in the work folder while files are made of it.
        converter: "module:function", a `Converter`. By name, so that reading the catalog loads none of them.
        name: What the converter is asked for.
    """

    network: ClassVar[bool] = True

    source: Source
    original: StoredFile
    converter: str
    name: str

    @property
    def label(self) -> str:
        return self.source.label

    def scratch(self) -> Mapping[str, int]:
        return {**self.source.scratch(), self._work_name: self.original.size}

    @property
    def _work_name(self) -> str:
        return f"{self.original.sha256}.original"

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:
        path = work / self._work_name
        if not path.is_file() or path.stat().st_size != self.original.size:
            self._bring(path, work, progress)
        module, _, function = self.converter.partition(":")
        convert = cast("Converter", getattr(importlib.import_module(module), function))
        held, at = sink.offset, 0
        for piece in convert(path, self.name):
            if at + len(piece) > held:  # what an earlier attempt has written is passed over
                sink.write(piece[max(0, held - at) :])
                progress(Progress("convert", sink.file.name, sink.offset, sink.file.size))
            at += len(piece)
        sink.finish()

    def _bring(self, path: Path, work: Path, progress: ProgressSink) -> None:
        """Checked by its digest before it gets its name."""
        partial = PartialFile(path.with_suffix(".partial"), self.original, progress)
        partial.discard()
        with partial:
            self.source.fetch(partial, work, progress)
        partial.path.replace(path)
