"""Which retained messages this device has left at the broker: on disk before they are sent, so that each can be taken back."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from edgewise.core.files import atomic_write, translate_os_errors


class Left:
    """Topics in a file; no file is none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"Left({self._path})"

    def topics(self) -> frozenset[str]:
        """A file that is damaged counts as none: what it named stays until somebody clears it by hand.

        Raises:
            StorageError: It cannot be read.
        """
        with translate_os_errors("read", self._path):
            if not self._path.exists():
                return frozenset()
            text = self._path.read_text("utf-8")
        try:
            told = json.loads(text)
        except ValueError:
            return frozenset()
        return frozenset(topic for topic in told if isinstance(topic, str)) if isinstance(told, list) else frozenset()

    def write(self, topics: Collection[str]) -> None:
        """Raises `StorageError` if it cannot be written."""
        if topics:
            atomic_write(self._path, json.dumps(sorted(topics)))
        else:
            with translate_os_errors("remove", self._path):
                self._path.unlink(missing_ok=True)
