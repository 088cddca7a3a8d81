"""A file that holds a run of named KV pages: written once as a whole, never changed, checked before a byte of it is used.

Layout, little-endian:

    0     magic "EDGEWKV" and a zero byte
    8     format version, pages n, bytes per page: three unsigned 32, 32 and 64 bit numbers
    24    32 bytes: BLAKE2b-256 of the key, which says for which model, format and numeric class the pages are
    56    n times: name of the page (32 bytes), BLAKE2b-128 of name and content (16 bytes)
    ...   16 bytes: BLAKE2b-128 of everything before
    ...   zeros up to a multiple of 4096, then the pages, one after the other; the file ends with the last

A name is a salted hash of the tokens; the tokens themselves are nowhere in the file. Contents are as personal as the prompts
they were computed from: the file's mode is 0600.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.engine.prefix import PageHash

VERSION = 1
SUFFIX = ".kv"
PART_SUFFIX = ".part"
MAX_PAGES = 4096

_MAGIC = b"EDGEWKV\0"
_HEAD = struct.Struct("<8sIIQ32s")
_NAME_BYTES, _DIGEST_BYTES = 32, 16
_ENTRY_BYTES = _NAME_BYTES + _DIGEST_BYTES
_ALIGNMENT = 4096
_FRESH_S = 2.0


class BadRecord(Exception):
    """A file or a page in it is not what was written; the message says how it was found out."""


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What a sound file says of itself: its pages' names and digests, in order, and where the first page lies."""

    names: tuple[PageHash, ...]
    digests: tuple[bytes, ...]
    start: int
    page_bytes: int

    @property
    def size(self) -> int:
        return self.start + len(self.names) * self.page_bytes


def key_digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=32).digest()


def page_digest(name: PageHash, content: memoryview) -> bytes:
    """Binds the content to its name: a page in another's place does not pass."""
    digest = hashlib.blake2b(name, digest_size=_DIGEST_BYTES)
    digest.update(content)
    return digest.digest()


def run_size(count: int, page_bytes: int) -> int:
    """Bytes of a file of `count` pages."""
    return _start(count) + count * page_bytes


def write_run(path: Path, key: bytes, pages: Sequence[tuple[PageHash, memoryview]]) -> int:
    """Write a file that appears under `path` when it is whole; returns its size. What a crash leaves ends in `PART_SUFFIX`.

    Nothing is synced: a power cut may leave a file whose bytes never reached the disk, and its checksums tell.

    Raises:
        OSError: The disk refuses; nothing is left behind then.
    """
    part = path.with_name(path.name + PART_SUFFIX)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Whoever opens the folder meanwhile sees by the lock that this file is not an orphan.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        header = _header(key, pages)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(header)
            for _, content in pages:
                file.write(content)
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return len(header) + sum(content.nbytes for _, content in pages)


def read_header(descriptor: int, key: bytes, page_bytes: int) -> RunHeader:
    """Read and check everything but the pages themselves.

    Raises:
        BadRecord: Another version, key or page size, damaged, cut or too long.
        OSError: The disk refuses.
    """
    head = os.pread(descriptor, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise BadRecord(f"cut within its first {_HEAD.size} bytes")
    magic, version, count, stored_bytes, stored_key = _HEAD.unpack(head)
    if magic != _MAGIC or version != VERSION:
        raise BadRecord("not of this format" if magic != _MAGIC else f"of format version {version}, not {VERSION}")
    if not 1 <= count <= MAX_PAGES:
        raise BadRecord(f"says it has {count} pages")
    table = os.pread(descriptor, count * _ENTRY_BYTES + _DIGEST_BYTES, _HEAD.size)
    entries, check = table[:-_DIGEST_BYTES], table[-_DIGEST_BYTES:]
    if len(entries) != count * _ENTRY_BYTES or _check(head + entries) != check:
        raise BadRecord("its header's checksum is wrong")
    if stored_key != key or stored_bytes != page_bytes:
        raise BadRecord("for another model, format or numeric class")
    rows = [entries[at : at + _ENTRY_BYTES] for at in range(0, len(entries), _ENTRY_BYTES)]
    names, digests = tuple(row[:_NAME_BYTES] for row in rows), tuple(row[_NAME_BYTES:] for row in rows)
    header = RunHeader(names, digests, _start(count), page_bytes)
    size = os.fstat(descriptor).st_size
    if size != header.size:
        raise BadRecord(f"has {size} bytes, not {header.size}")
    return header


def read_page(descriptor: int, header: RunHeader, index: int) -> memoryview:
    """One page's content in memory of its own.

    Raises:
        BadRecord: It is not what was written.
        OSError: The disk refuses.
    """
    content = memoryview(bytearray(header.page_bytes))
    at = header.start + index * header.page_bytes
    got = os.preadv(descriptor, [content], at)
    while 0 < got < header.page_bytes:
        more = os.preadv(descriptor, [content[got:]], at + got)
        if more == 0:
            break
        got += more
    if got != header.page_bytes or page_digest(header.names[index], content) != header.digests[index]:
        raise BadRecord(f"the checksum of its page {index} is wrong")
    return content


def is_orphan(part: Path, now: float) -> bool:
    """Whether nobody is writing this unfinished file any more. A file of the last seconds may not be locked yet."""
    try:
        descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if now - os.fstat(descriptor).st_mtime < _FRESH_S:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _header(key: bytes, pages: Sequence[tuple[PageHash, memoryview]]) -> bytes:
    head = _HEAD.pack(_MAGIC, VERSION, len(pages), pages[0][1].nbytes, key)
    head += b"".join(name + page_digest(name, content) for name, content in pages)
    return (head + _check(head)).ljust(_start(len(pages)), b"\0")


def _start(count: int) -> int:
    used = _HEAD.size + count * _ENTRY_BYTES + _DIGEST_BYTES
    return -(-used // _ALIGNMENT) * _ALIGNMENT


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
