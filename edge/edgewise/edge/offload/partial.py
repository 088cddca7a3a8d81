"""What has come of blobs whose link was lost: whoever asks for one again goes on there."""

from __future__ import annotations

MOST_BYTES = 64 * 1024**2
MOST_BLOBS = 64


class Partial:
    """Beginnings of blobs by their hash. Nobody says when one is given up, so those asked for longest ago make room.

    Args:
        most_bytes, most_blobs: Kept of all together, besides the one that was asked for last.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, most_blobs: int = MOST_BLOBS) -> None:
        self._most_bytes = most_bytes
        self._most_blobs = most_blobs
        self._begun: dict[str, bytearray] = {}

    def __repr__(self) -> str:
        return f"Partial({len(self._begun)} blobs, {self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._begun.values()))

    def begun(self, sha256: str) -> bytearray:
        """What is there of a blob; what comes is added to it. It stays whole for its reader, also when it is no longer kept."""
        have = self._begun.pop(sha256, None)
        have = bytearray() if have is None else have
        for older in list(self._begun):
            if len(self._begun) < self._most_blobs and self.nbytes <= self._most_bytes:
                break
            del self._begun[older]
        self._begun[sha256] = have
        return have

    def forget(self, sha256: str) -> None:
        """It has come, or what came is not it."""
        self._begun.pop(sha256, None)
