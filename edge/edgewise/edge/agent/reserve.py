"""Room on the disk for what must not be lost.

A file of some bytes is held. When the disk is full it is given up, together with telemetry and logs, so that commands and their
ends can still be written; it is taken again when there is space.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from edgewise.core.errors import StorageError
from edgewise.core.log import get_logger
from edgewise.edge.agent.uplink.rows import Rows

log = get_logger(__name__)

RESERVE_BYTES = 2 * 1024**2
_AGAIN = 4
"""The reserve is taken again when so many times its size is free."""


class Reserve:
    """Args:
    path: Of the file.
    rows: What waits for the fleet.
    """

    def __init__(self, path: Path, rows: Rows, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._rows = rows
        self._size = size

    @property
    def held(self) -> bool:
        return self._path.exists()

    async def hold(self) -> bool:
        """Take it, if there is space; whether it is held. While it is not, telemetry and logs are not worth their bytes."""
        return await asyncio.to_thread(self._hold)

    async def free(self) -> None:
        """The disk is full: give up what can be spared."""
        await asyncio.to_thread(self._path.unlink, True)
        try:
            dropped = await self._rows.clear_bulk()
        except StorageError as error:
            log.warning("uplink_not_cleared", reason=error.message)
        else:
            log.warning("disk_full", dropped_rows=dropped, remedy="free space; commands and results go on")

    def _hold(self) -> bool:
        if self.held:
            return True
        stat = os.statvfs(self._path.parent)
        if stat.f_bavail * stat.f_frsize < _AGAIN * self._size:
            return False
        try:
            with self._path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self._size)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            log.warning("reserve_not_taken", path=str(self._path), reason=str(error))
            return False
        return True
