"""Decoding media of callers in a process of its own, under limits of memory and time.

The libraries that read pictures, film and sound are large and written in C, and what callers send is hostile: a file of a few
bytes may claim gigabytes, or loop. There a fault costs one request, never the service.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from edgewise.core.confined import ChildEndedError, ConfinedChild
from edgewise.core.errors import EngineFault, InvalidRequest

ADDRESS_SPACE_BYTES: Final = 3 << 30
CPU_SECONDS: Final = 120.0
"""For one medium."""
WALL_SECONDS: Final = 600.0
_WORKER: Final = "edgewise.models.media.worker"
"""Named, not imported: importing it would load decoders into this process."""
Result = TypeVar("Result")
_HEAD: Final = struct.Struct("<I")  # length of the JSON; the bytes follow it

JOBS: Final[Mapping[str, str]] = {
    "audio": "edgewise.models.media.audio:decode",
    "film": "edgewise.models.media.fit:film",
    "picture": "edgewise.models.media.fit:picture",
    "film-pictures": "edgewise.models.media.fit:film_pictures",
    "needs-audio": "edgewise.models.media.needs:audio",
    "needs-film": "edgewise.models.media.needs:film",
    "needs-picture": "edgewise.models.media.needs:picture",
}
"""By name: "module:function" that takes the encoded bytes and the options, and returns what it found (JSON-able) and the samples.
It raises `InvalidRequest` for what cannot be read."""


class MediaProcess:
    """One process that decodes. `decode` may be called from any thread; it waits for those before it.

    An event loop asks by `turn`.
    """

    def __init__(self) -> None:
        self._child = ConfinedChild(_WORKER, wall_s=WALL_SECONDS)
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"MediaProcess(pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """Process id while one is running or has just ended."""
        return self._child.pid

    def close(self) -> None:
        """End the process. A later call starts a new one."""
        self._child.close()

    async def turn(self, work: Callable[[], Result], first: Callable[[], None] | None = None) -> Result:
        """`work`, which decodes here, on a thread when its turn has come: who waits holds no thread, of which the loop has few.

        Args:
            first: Called when the turn has come, before `work`, which is left out if it raises: what is booked there is booked
                for one at a time.

        Cancelling it ends the process if it works for it, and with that the thread; the next one starts a new process.
        """
        async with self._turn:
            if first is not None:
                first()
            try:
                return await asyncio.to_thread(work)
            except asyncio.CancelledError:
                self._child.abandon()
                raise

    def decode(self, job: str, data: bytes, options: Mapping[str, Any], *, param: str) -> tuple[dict[str, Any], bytes]:
        """What `JOBS[job]` makes of `data`.

        Args:
            options: JSON-able, as the job takes them.
            param: The request's field that `data` came in, for messages.

        Raises:
            InvalidRequest: It cannot be read, or is beyond a limit.
            EngineFault: The process ended for a reason that is not the file's, twice.
        """
        request = pack({"job": job, "param": param, "options": dict(options)}, data)
        try:
            answer, content = unpack(self._child.ask(request))
        except ChildEndedError as error:
            raise _explained(error, param) from error
        if "error" in answer:
            raise InvalidRequest(answer["error"], param=answer["param"])
        return answer, content


def pack(head: Mapping[str, Any], content: bytes) -> bytes:
    """One frame's body."""
    text = json.dumps(head).encode()
    return b"".join((_HEAD.pack(len(text)), text, content))


def unpack(body: bytes) -> tuple[dict[str, Any], bytes]:
    """The reverse of `pack`."""
    end = _HEAD.size + _HEAD.unpack_from(body)[0]
    head: dict[str, Any] = json.loads(body[_HEAD.size : end])
    return head, body[end:]


def _explained(error: ChildEndedError, param: str) -> InvalidRequest | EngineFault:
    if error.out_of_time:
        return InvalidRequest(
            f"'{param}' takes more than {CPU_SECONDS:g} s to decode: send less of it, or in a simpler format.",
            param=param,
        )
    return EngineFault(f"The process that decodes '{param}' ended with status {error.status}: try again.", param=param)
