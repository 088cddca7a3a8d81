"""The number of a sender's session, kept on disk: every later session has a higher one."""

from __future__ import annotations

import time
from pathlib import Path

from edgewise.core.files import atomic_write
from edgewise.core.log import get_logger

log = get_logger(__name__)


class SessionCounter:
    """`next` writes before it answers, so that no two sessions have the same number whatever happens between.

    Args:
        path: A file of its own in the state directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def next(self) -> int:
        """The number of the session that begins now. Blocks for a disk write.

        Raises:
            StorageError: The disk refuses.
        """
        number = self._last() + 1
        atomic_write(self._path, f"{number}\n", mode=0o600)
        return number

    def _last(self) -> int:
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return 0
        except UnicodeDecodeError:
            text = ""
        if text.isdigit() and len(text) <= 15:
            return int(text)
        # Seconds since 1970 are beyond any number that sessions have counted to.
        log.warning("session_counter_damaged", path=str(self._path))
        return int(time.time())
