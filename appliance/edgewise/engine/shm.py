"""Large payloads through anonymous shared memory: a sealed memfd that travels over the socket as ancillary data.

A memfd has no name, so nothing is left behind in any file system when either side dies: the kernel frees it with the last
descriptor. The seals (memfd_create(2), fcntl(2) F_ADD_SEALS) make it immutable, so the receiver may trust what it has checked.
"""

from __future__ import annotations

import fcntl
import os

from edgewise.core.errors import OutOfMemory
from edgewise.engine.messages import ProtocolError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def seal(*parts: bytes) -> int:
    """Copy a payload, part by part, into a sealed memfd and return its descriptor, which the caller closes.

    Raises:
        OutOfMemory: The system gives no memory or no descriptor for it.
    """
    try:
        descriptor = os.memfd_create("edgewise-payload", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise OutOfMemory(
            f"No shared memory for a message of {sum(map(len, parts))} bytes: {error.strerror}."
        ) from error
    try:
        for part in parts:
            _write_all(descriptor, part)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(descriptor)
        raise OutOfMemory(
            f"No shared memory for a message of {sum(map(len, parts))} bytes: {error.strerror}."
        ) from error
    return descriptor


def unseal(descriptor: int, length: int) -> bytes:
    """Read the payload of a sealed memfd; the descriptor is closed in any case.

    Raises:
        ProtocolError: It is not sealed, not a memfd, or not exactly `length` bytes long.
    """
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ProtocolError("A shared-memory payload is not sealed; the sender could still change it.")
        size = os.fstat(descriptor).st_size
        if size != length:
            raise ProtocolError(f"A shared-memory payload has {size} bytes, its frame says {length}.")
        return _read_all(descriptor, length)
    except OSError as error:
        raise ProtocolError(f"A descriptor on the engine socket is no shared memory: {error.strerror}.") from error
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, payload: bytes) -> None:
    view = memoryview(payload)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_all(descriptor: int, length: int) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while offset < length:
        part = os.pread(descriptor, length - offset, offset)
        if not part:
            raise ProtocolError(f"A shared-memory payload ends at byte {offset} of {length}.")
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
