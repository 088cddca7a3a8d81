"""An audit trail in a file: one JSON object a line, each bound to the one before by its hash.

A record's `hash` is SHA-256 over its line without `hash`, which holds the `previous` one's. Whoever changes, removes or moves a
record breaks the chain from there on; only the loss of the last records cannot be seen from the file alone, so keep a recent hash
elsewhere. With `sync=always`, the default, a request goes on when its record is on disk (fsync); with `sync=never` the system
writes when it likes, and a power cut may take the last seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from edgewise.core.errors import ConfigError
from edgewise.core.files import make_folder, own_like_parent, translate_os_errors
from edgewise.core.log import get_logger
from edgewise.pipeline.hooks.protocol import AuditRecord, Hook, HookSetup

log = get_logger(__name__)
GENESIS = "0" * 64
_OPTIONS = frozenset({"file", "sync", "text"})


class AuditLog(Hook):
    """Options: `file` (default: audit.jsonl in the state directory); `sync` = always (default) or never; `text` = no (default) or
    yes: prompts and answers are written too.
    """

    name = "audit-log"

    def __init__(self, setup: HookSetup) -> None:
        super().__init__(setup)
        options = setup.options
        unknown = sorted(options.keys() - _OPTIONS)
        if unknown:
            raise ConfigError(f"hooks.options: audit-log has no option '{unknown[0]}'.")
        self._path = setup.home / Path(options.get("file", "audit.jsonl")).expanduser()
        self._sync = _switch(options, "sync", on="always", off="never", default=True)
        self.wants_text = _switch(options, "text", on="yes", off="no", default=False)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        self._file: BinaryIO | None = None
        self._last = GENESIS
        self._number = 0

    async def audit(self, record: AuditRecord) -> None:
        """Raises `StorageError`: the disk refuses; nothing of the record remains then."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._append, _facts(record))

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _append(self, facts: dict[str, Any]) -> None:
        with translate_os_errors("write", self._path):
            if self._file is None:
                self._file = self._open()
            number = self._number + 1
            hashed = _line({"number": number, "previous": self._last, **facts})
            digest = hashlib.sha256(hashed.encode()).hexdigest()
            end = self._file.seek(0, os.SEEK_END)
            try:
                _write_all(self._file, f'{hashed[:-1]},"hash":"{digest}"}}\n'.encode())
                if self._sync:
                    os.fsync(self._file.fileno())
            except OSError:
                self._file.truncate(end)
                raise
            self._number, self._last = number, digest

    def _open(self) -> BinaryIO:
        make_folder(self._path.parent, mode=0o750)
        new = not self._path.exists()
        file = os.fdopen(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
        if new:
            own_like_parent(self._path)
        self._number, self._last = self._recover(file)
        return file

    def _recover(self, file: BinaryIO) -> tuple[int, str]:
        """Number and hash of the last record; a line that a crash left unfinished is cut off: nobody was told of it."""
        end = file.seek(0, os.SEEK_END)
        start = max(0, end - 2**20)
        file.seek(start)
        tail = file.read(end - start)
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):
            log.warning("audit_log_torn", file=str(self._path), bytes=len(tail) - whole)
            file.truncate(start + whole)
        lines = tail[:whole].splitlines()
        if not lines:
            return 0, GENESIS
        last = json.loads(lines[-1])
        return int(last["number"]), str(last["hash"])

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _write_all(file: BinaryIO, data: bytes) -> None:
    """A raw file may take a part only; what refuses the rest says why at the next try."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def verify_chain(path: Path) -> int:
    """How many records a trail has.

    Raises:
        ValueError: It is broken; the message names the line.
    """
    last, count = GENESIS, 0
    with path.open("rb") as file:
        for count, raw in enumerate(file, 1):
            try:
                record = json.loads(raw)
                told = record.pop("hash")
                number, previous = record["number"], record["previous"]
            except (ValueError, KeyError, AttributeError) as error:
                raise ValueError(f"line {count} is no record") from error
            if number != count or previous != last:
                raise ValueError(f"line {count} does not follow the one before")
            if hashlib.sha256(_line(record).encode()).hexdigest() != told:
                raise ValueError(f"line {count} was changed")
            last = told
    return count


def _facts(record: AuditRecord) -> dict[str, Any]:
    """The record as plain data, without what is not known."""
    facts = asdict(record)
    call = facts.pop("call")
    facts["answers"] = [_known(answer) for answer in facts["answers"]]
    return _known({**facts, **call})


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _switch(options: Mapping[str, str], name: str, *, on: str, off: str, default: bool) -> bool:
    value = options.get(name, on if default else off)
    if value not in (on, off):
        raise ConfigError(f"hooks.options: audit-log.{name} must be '{on}' or '{off}'.")
    return value == on
