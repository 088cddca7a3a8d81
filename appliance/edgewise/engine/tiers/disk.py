"""The disk tier's index and its reads and writes. Torch-free; starts no thread (`tiers.worker` does)."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.core.errors import StorageError
from edgewise.core.log import get_logger
from edgewise.engine.prefix import PageHash
from edgewise.engine.tiers import folder as folders
from edgewise.engine.tiers.run_file import (
    SUFFIX,
    BadRecord,
    RunHeader,
    key_digest,
    read_header,
    read_page,
    run_size,
    write_run,
)

RESERVE_BYTES = 256 << 20
"""Free space that is left to others: a cache must never be what fills a disk."""
_TOUCH_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 600.0

log = get_logger(__name__)


class DiskUnavailable(Exception):
    """The tier is switched off for now; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpec:
    """Where and for what pages are stored.

    Attributes:
        root: Folder of the tier, shared by all models.
        limit: Bytes that all run files below it may have together.
        model, model_digest, numeric_class, key: Of the engine; `key` is `folder.key_of`.
        page_bytes: Bytes of a page.
        reserve: Bytes of the file system that stay free.
    """

    root: Path
    limit: int
    model: str
    model_digest: str
    numeric_class: str
    key: str
    page_bytes: int
    reserve: int = RESERVE_BYTES


@dataclass(slots=True)
class DiskCounts:
    """Since the start, pages; `refused`: files that did not pass their checks; `dropped`: pages not written."""

    hits: int = 0
    misses: int = 0
    refused: int = 0
    dropped: int = 0
    written: int = 0


class DiskStore:
    """Pages of one key on disk. `locate` is called by the step loop, everything else by the tier's threads.

    Args:
        spec: See there.
        notify: Told when the tier is switched off and on again: a word and a sentence.
        now: Monotonic seconds.
    """

    def __init__(
        self, spec: DiskSpec, *, notify: Callable[[str, str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.counts = DiskCounts()
        self.used_bytes = 0
        self._spec = spec
        self._key = key_digest(spec.key)
        self._folder = folders.class_folder(spec.root, spec.model_digest, spec.key)
        self._notify = notify
        self._now = now
        self._lock = threading.Lock()
        self._where: dict[PageHash, tuple[Path, int]] = {}
        self._files: dict[Path, RunHeader] = {}
        self._touched: dict[Path, float] = {}
        self._off_until: float | None = None
        self._over = False
        self._pause = _FIRST_PAUSE_S

    def __repr__(self) -> str:
        return f"DiskStore({len(self)} pages in {len(self._files)} files, {'off' if self.off else 'on'})"

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: PageHash) -> bool:
        return name in self._where

    @property
    def limit(self) -> int:
        return self._spec.limit

    @property
    def off(self) -> bool:
        """Whether the disk has refused a write and has not taken one since."""
        return self._off_until is not None

    # --- opening ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Index what is there; remove what is damaged, foreign or unfinished. A disk that refuses switches the tier off."""
        try:
            folders.prepare(self._folder, model=self._spec.model, numeric_class=self._spec.numeric_class)
            folders.remove_orphans(self._spec.root)
            for file in sorted(folders.files_in(self._folder), key=lambda file: file.used_at):
                self._index(file.path)
            removed, self.used_bytes = folders.make_room(self._spec.root, self._spec.limit, 0)
            self._forget(removed)
        except (OSError, StorageError) as error:
            self._switch_off(error)

    def _index(self, path: Path) -> None:
        descriptor = self._open_file(path)
        if descriptor < 0:
            return
        try:
            header = read_header(descriptor, self._key, self._spec.page_bytes)
        except (BadRecord, OSError) as error:  # what a disk cannot read is as good as damaged
            self._refuse(path, str(error))
        else:
            self._learn(path, header)
        finally:
            os.close(descriptor)

    def _learn(self, path: Path, header: RunHeader) -> None:
        with self._lock:
            self._files[path] = header
            self._where.update({name: (path, index) for index, name in enumerate(header.names)})

    def _refuse(self, path: Path, reason: str) -> None:
        """A file that is not what was written: nothing in it is trusted any more."""
        self.counts.refused += 1
        log.warning(
            "disk_cache_refused", file=str(path), reason=reason, effect="removed; what it held is computed again"
        )
        self._forget([path])
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # a read-only disk: the file is out of the index, and refused again at the next start
            log.warning("disk_cache_not_removed", file=str(path), reason=str(error))

    def _forget(self, paths: Iterable[Path]) -> None:
        with self._lock:
            for path in paths:
                header = self._files.pop(path, None)
                self._touched.pop(path, None)
                for name in header.names if header else ():
                    if self._where.get(name, (None, 0))[0] == path:
                        del self._where[name]

    # --- reading ----------------------------------------------------------------------------------------------------------

    def known(self, chain: Sequence[PageHash]) -> int:
        """How many names at the start of `chain` are in the index."""
        with self._lock:
            return next((count for count, name in enumerate(chain) if name not in self._where), len(chain))

    def read(self, chain: Sequence[PageHash], deliver: Callable[[PageHash, memoryview], None]) -> int:
        """Read and check pages in order, deliver each, end at the first that is not there or not good; returns how many."""
        done = 0
        descriptor, opened = -1, None
        try:
            for name in chain:
                place = self._where.get(name)
                if place is None:
                    break
                path, index = place
                if path != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                    descriptor, opened = self._open_to_read(path), path
                header = self._files.get(path)
                if descriptor < 0 or header is None:
                    break
                deliver(name, read_page(descriptor, header, index))
                done += 1
        except (BadRecord, OSError) as error:  # what a disk cannot read is as good as damaged
            if opened is not None:
                self._refuse(opened, str(error))
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self.counts.hits += done
        self.counts.misses += len(chain) - done
        return done

    def _open_to_read(self, path: Path) -> int:
        """As `_open_file`; marks the file as used, for all engines."""
        descriptor = self._open_file(path)
        if descriptor < 0:
            return -1
        if self._now() - self._touched.get(path, -_TOUCH_S) >= _TOUCH_S:
            self._touched[path] = self._now()
            try:
                os.utime(path)
            except OSError as error:  # a disk that became read-only can still be read
                log.debug("disk_cache_not_touched", file=str(path), reason=str(error))
        return descriptor

    def _open_file(self, path: Path) -> int:
        """A descriptor, or -1 if the file is gone or cannot be opened: out of the index then, and left to its owner."""
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # what another engine has removed is nothing to tell
                log.warning("disk_cache_not_opened", file=str(path), reason=str(error))
        self._forget([path])
        return -1

    # --- writing ----------------------------------------------------------------------------------------------------------

    def accepts(self) -> bool:
        """Whether a write is worth trying now: always, but after a refusal of the disk only once in a while."""
        return not self._over and (self._off_until is None or self._now() >= self._off_until)

    def write(self, pages: Sequence[tuple[PageHash, memoryview]]) -> Path | None:
        """Store pages that are not stored yet, in one file; returns its path, or None where nothing was written."""
        fresh = [(name, content) for name, content in pages if name not in self._where]
        if not fresh:
            return None
        path = self._folder / f"{secrets.token_hex(8)}{SUFFIX}"
        try:
            self._make_room(run_size(len(fresh), self._spec.page_bytes))
            folders.prepare(self._folder, model=self._spec.model, numeric_class=self._spec.numeric_class)
            self.used_bytes += write_run(path, self._key, fresh)
            self._index(path)
        except (OSError, StorageError, DiskUnavailable) as error:
            self.counts.dropped += len(fresh)
            self._switch_off(error)
            return None
        self.counts.written += len(fresh)
        self._switch_on()
        return path

    def discard(self, path: Path) -> None:
        """Take back a file just written."""
        self._forget([path])
        path.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Raise `DiskUnavailable` if the limit or the file system leave no room for `size` bytes."""
        spec = self._spec
        if size > spec.limit:
            raise DiskUnavailable(f"{size} bytes are more than the whole limit of {spec.limit} bytes")
        removed, self.used_bytes = folders.make_room(spec.root, spec.limit, size)
        free = self._free_space()
        if free < spec.reserve + size and self.used_bytes:
            # The disk fills up with other things: give way to them.
            more, self.used_bytes = folders.make_room(
                spec.root, max(0, self.used_bytes - (spec.reserve + size - free)), 0
            )
            removed += more
            free = self._free_space()
        self._forget(removed)
        if free < spec.reserve + size:
            raise DiskUnavailable(f"{free} bytes are free, {spec.reserve} are left to others")

    def _free_space(self) -> int:
        self._spec.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return shutil.disk_usage(self._spec.root).free

    def _switch_off(self, error: Exception) -> None:
        first = self._off_until is None
        self._off_until = self._now() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        reason = str(error)
        if first:
            log.warning("disk_cache_off", folder=str(self._spec.root), reason=reason, retry_in_s=_FIRST_PAUSE_S)
            self._notify("disk_cache_off", f"KV pages are not written to disk for now: {reason}.")

    def give_up(self, error: Exception) -> None:
        """Switch the tier off for good: nobody reads and writes it any more."""
        self._over = True
        self._switch_off(error)

    def _switch_on(self) -> None:
        if self._over:  # the last write of a thread that has not heard of it yet
            return
        if self._off_until is not None:
            log.info("disk_cache_on", folder=str(self._spec.root))
            self._notify("disk_cache_on", "KV pages are written to disk again.")
        self._off_until, self._pause = None, _FIRST_PAUSE_S

    def forget_all(self) -> int:
        """Empty the index, not the folder, which whoever calls this clears; returns the number of pages it knew."""
        with self._lock:
            count = len(self._where)
            self.used_bytes = max(0, self.used_bytes - sum(header.size for header in self._files.values()))
            self._where.clear()
            self._files.clear()
            self._touched.clear()
            return count
