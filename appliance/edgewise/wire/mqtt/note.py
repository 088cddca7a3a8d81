"""What the process that has the link to the broker says of it, for other processes of the same machine: with one name they cannot
look for themselves without putting an end to its connection.

The file is locked by the process that writes it, so that what a dead one left is not believed.
"""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import TextIO

from edgewise.core.log import get_logger
from edgewise.wire.mqtt.link import LinkEvent

log = get_logger(__name__)

NAME = "mqtt-link"
"""Of the file in the state directory."""


class LinkNote:
    """Written at each event of a link; held until `close` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def write(self, event: LinkEvent) -> None:
        """Never raises: a link works without its note."""
        try:
            if self._file is None:
                self._file = _held(self._path)
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps({"kind": event.kind, "message": event.message}))
            self._file.flush()
        except OSError as error:  # no room, or another process of this state directory has a link
            log.info("mqtt_note_not_written", path=str(self._path), reason=str(error))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_note(path: Path) -> LinkEvent | None:
    """The last event of the link of a process that lives; None if there is no such process, or it has none yet."""
    try:
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raw = json.loads(file.read())
                return LinkEvent(kind=raw["kind"], message=raw["message"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or just being written
        return None
    return None


def _held(path: Path) -> TextIO:
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
