"""Progress of pictures that a slow reader has not taken yet grows together."""

from __future__ import annotations

from dataclasses import replace

from edgewise.engine.pictures.request import DiffuseChunk


def merge(first: DiffuseChunk, second: DiffuseChunk) -> DiffuseChunk:
    """Two chunks of one request that follow each other, as one; of two previews the newer is kept."""
    return replace(
        second,
        offset=first.offset,
        count=first.count + second.count,
        preview=first.preview if second.preview is None else second.preview,
    )


class PictureMerger:
    """Unsent chunks, one for each request, in order of arrival."""

    def __init__(self) -> None:
        self._chunks: dict[str, DiffuseChunk] = {}

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, chunk: DiffuseChunk) -> None:
        before = self._chunks.get(chunk.request_id)
        self._chunks[chunk.request_id] = chunk if before is None else merge(before, chunk)

    def take(self) -> DiffuseChunk:
        """Remove and return the oldest chunk; a picture is large enough for a frame of its own."""
        return self._chunks.pop(next(iter(self._chunks)))
