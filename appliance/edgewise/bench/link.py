"""A link that can be slow, narrow, broken and searched: a TCP proxy on loopback between two of our processes.

It stands in for the network between a device and its cloud or broker, in benchmarks and in tests. Everything that crosses is
ordinary TCP, so the programs at its ends are the real ones. What it adds is deterministic for a seed, up to the moments at which
the operating system hands bytes over.

    with Link("127.0.0.1", 8500, LinkShape(rtt_s=0.06, bits_per_s=10e6)) as link:
        ...                                   # talk to link.url
        link.reset()                          # every connection breaks; new ones are taken
        link.cut()                            # as if unplugged, until link.restore()
        link.act_after(4_000, "reset")        # once so many more bytes have come down
        assert not link.saw(b"a marker")
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeVar

Direction = Literal["up", "down"]
"""Up is from whoever connected to the target; down is back."""
Action = Literal["reset", "cut", "hold"]

DIRECTIONS: tuple[Direction, ...] = ("up", "down")
_PIECE = 16 * 1024
_IN_FLIGHT = 8 * 1024**2  # above bandwidth x delay of 1 Gbit/s and 60 ms
_TAIL = 256
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """What a link does to bytes.

    Attributes:
        rtt_s: Round trip in seconds: each direction takes half of it, and a new connection waits for one round trip.
        jitter_s: Up to so many seconds more for each piece, drawn evenly; the order of bytes stays.
        bits_per_s: Rate of each direction, shared by all connections; None sets no limit.
        bytes_between_resets: On average a connection breaks after so many bytes, both directions together; None never.
    """

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    bits_per_s: float | None = None
    bytes_between_resets: float | None = None


class RecordFull(Exception):
    """More crossed the link than is kept: it cannot be said any more what did not cross."""


@dataclass(slots=True)
class _Trigger:
    """Something to do once `left` more bytes, or pieces of text, have passed in one direction."""

    direction: Direction
    left: int
    action: Action
    text: bytes | None
    fired: threading.Event = field(default_factory=threading.Event)

    def place(self, tail: bytes, piece: bytes) -> int | None:
        """How many bytes of `piece` pass before it fires; None if it does not. `tail` passed before in this connection."""
        if self.text is None:
            return self.left if len(piece) >= self.left else None
        ends = self._ends(tail, piece)
        return ends[self.left - 1] if len(ends) >= self.left else None

    def count(self, tail: bytes, passed: bytes) -> None:
        """`passed` has passed, and it did not fire."""
        self.left -= len(passed) if self.text is None else len(self._ends(tail, passed))

    def _ends(self, tail: bytes, piece: bytes) -> list[int]:
        """Where the text ends in `piece`, also where it began before."""
        assert self.text is not None
        tail = tail[
            max(0, len(tail) - len(self.text) + 1) :
        ]  # too short to hold the whole text, which was counted then
        joined, ends, at = tail + piece, [], 0
        while (found := joined.find(self.text, at)) >= 0:
            at = found + len(self.text)
            ends.append(at - len(tail))
        return ends


class _Connection:
    """One client and its connection to the target."""

    def __init__(self, near: asyncio.StreamWriter, until_reset: float) -> None:
        self.near = near
        self.far: asyncio.StreamWriter | None = None
        self.until_reset = until_reset
        self.record: dict[Direction, bytearray] = {"up": bytearray(), "down": bytearray()}
        self.tail: dict[Direction, bytes] = {"up": b"", "down": b""}

    def reset(self) -> None:
        """Break both halves, with whatever is on its way."""
        for writer in (self.near, self.far):
            if writer is not None and not writer.transport.is_closing():
                with contextlib.suppress(OSError):  # the peer has gone already
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()


class Link:
    """The proxy; a context manager, or `start` and `stop`. It has a thread of its own: every method may be called from any other.

    Args:
        host, port: The target.
        shape: What it does to bytes; may be replaced at any time by `reshape`.
        listen: Address to listen on.
        keep_bytes: How much of what passes is kept for `saw` and `passed`, all connections together; 0 keeps nothing.
        seed: Of jitter and random resets.
    """

    def __init__(
        self,
        host: str,
        port: int,
        shape: LinkShape | None = None,
        *,
        listen: str = "127.0.0.1",
        keep_bytes: int = 256 * 1024**2,
        seed: int = 0,
    ) -> None:
        self._target = (host, port)
        self._shape = shape or LinkShape()
        self._listen = listen
        self._keep = keep_bytes
        self._kept = 0
        self._rng = random.Random(seed)  # noqa: S311 - jitter
        self._cut = False
        self._moving = asyncio.Event()
        self._moving.set()
        self._bytes: dict[Direction, int] = {"up": 0, "down": 0}
        self._free: dict[Direction, float] = {"up": 0.0, "down": 0.0}
        self._triggers: list[_Trigger] = []
        self._open: dict[asyncio.Task[None], _Connection] = {}
        self._records: list[_Connection] = []
        self._accepted = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._port = 0

    def __repr__(self) -> str:
        state = "cut" if self._cut else "up" if self._moving.is_set() else "held"
        return f"Link({self._listen}:{self._port} -> {self._target[0]}:{self._target[1]}, {state})"

    # --- for whoever uses it ----------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The TCP port to connect to."""
        return self._port

    @property
    def url(self) -> str:
        return f"http://{self._listen}:{self._port}"

    @property
    def connections(self) -> int:
        """How many have been made."""
        return self._accepted

    def carried(self, direction: Direction) -> int:
        """How many bytes have passed in a direction, all connections together."""
        return self._bytes[direction]

    def start(self) -> None:
        self._thread.start()
        self._port = self._call(self._begin())

    def stop(self) -> None:
        """Break what is open and end; safe to call twice."""
        if self._thread.is_alive():
            self._call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def reshape(self, shape: LinkShape) -> None:
        """From now on; bytes on their way arrive as planned."""
        self._do(lambda: setattr(self, "_shape", shape))

    def reset(self) -> None:
        """Break every open connection; new ones are taken."""
        self._do(lambda: self._act("reset"))

    def cut(self) -> None:
        """Break every open connection, and each new one at once, until `restore`."""
        self._do(lambda: self._act("cut"))

    def hold(self) -> None:
        """Nothing passes and nobody is told, until `restore`; as when a cable is pulled. What is sent meanwhile is not lost."""
        self._do(lambda: self._act("hold"))

    def restore(self) -> None:
        """End `cut` or `hold`."""
        self._do(self._restore)

    def act_after(
        self, count: int, action: Action, *, direction: Direction = "down", text: bytes | None = None
    ) -> threading.Event:
        """Do something at an exact place: once `count` more bytes have passed, or `text` has passed `count` more times.

        Returns:
            Set once it has been done.
        """
        if count < 1:
            raise ValueError("count must be at least 1")
        if text is not None and not 0 < len(text) <= _TAIL:
            raise ValueError(f"text must have 1 to {_TAIL} bytes")
        trigger = _Trigger(direction, count, action, text)
        self._do(lambda: self._triggers.append(trigger))
        return trigger.fired

    def passed(self, direction: Direction) -> list[bytes]:
        """What has passed in a direction, by connection, in the order of their beginnings.

        Raises:
            RecordFull: More passed than is kept.
        """
        if self._kept > self._keep:
            raise RecordFull(f"more than {self._keep} bytes crossed the link: give a larger keep_bytes")
        return self._call(self._copy(direction))

    def saw(self, marker: bytes, direction: Direction | None = None) -> bool:
        """Whether `marker` has passed as it stands, in one direction or in any; raises `RecordFull` like `passed`."""
        wanted = DIRECTIONS if direction is None else (direction,)
        return any(marker in record for one in wanted for record in self.passed(one))

    def __enter__(self) -> Link:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- in the thread ----------------------------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _do(self, act: Callable[[], None]) -> None:
        async def once() -> None:
            act()

        self._call(once())

    async def _begin(self) -> int:
        self._server = await asyncio.start_server(self._accept, self._listen, 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        self._server.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _copy(self, direction: Direction) -> list[bytes]:
        return [bytes(connection.record[direction]) for connection in self._records]

    def _act(self, action: Action) -> None:
        if action == "hold":
            self._moving.clear()
            return
        self._cut = self._cut or action == "cut"
        for task, connection in self._open.items():
            connection.reset()
            task.cancel()

    def _restore(self) -> None:
        self._cut = False
        self._moving.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        between = self._shape.bytes_between_resets
        connection = _Connection(writer, self._rng.expovariate(1 / between) if between else float("inf"))
        self._accepted += 1
        self._open[task] = connection
        if self._keep:
            self._records.append(connection)
        try:
            # Broken by us, or at an end: the other end learns it by a reset, which is all that a link can tell it.
            with contextlib.suppress(asyncio.CancelledError, OSError):
                if not self._cut:
                    await self._join(connection, reader)
        finally:
            connection.reset()
            del self._open[task]

    async def _join(self, connection: _Connection, near: asyncio.StreamReader) -> None:
        """Connect to the target and carry bytes both ways until both directions have ended."""
        await asyncio.sleep(self._shape.rtt_s)
        await self._moving.wait()
        far, connection.far = await asyncio.open_connection(*self._target)
        up, down = _Way(), _Way()
        await _together(
            self._fill(up, "up", near),
            self._empty(up, "up", connection, connection.far),
            self._fill(down, "down", far),
            self._empty(down, "down", connection, connection.near),
        )
        for writer in (connection.near, connection.far):
            writer.close()
            await writer.wait_closed()

    async def _fill(self, way: _Way, direction: Direction, reader: asyncio.StreamReader) -> None:
        """Read as fast as the rate allows; every piece gets the moment at which it arrives."""
        latest = 0.0
        while True:
            piece = await reader.read(_PIECE)
            shape, now = self._shape, self._loop.time()
            if shape.bits_per_s is not None:
                self._free[direction] = now = max(now, self._free[direction]) + 8 * len(piece) / shape.bits_per_s
            latest = max(latest, now + shape.rtt_s / 2 + self._rng.uniform(0.0, shape.jitter_s))
            await way.put(latest, piece)
            if not piece:
                return

    async def _empty(
        self, way: _Way, direction: Direction, connection: _Connection, writer: asyncio.StreamWriter
    ) -> None:
        """Hand every piece over when it is due."""
        while True:
            when, piece = await way.next()
            await asyncio.sleep(max(0.0, when - self._loop.time()))
            await self._moving.wait()
            if not piece:  # the sender has no more to say in this direction
                writer.write_eof()
                return
            while piece and not writer.is_closing():
                await self._moving.wait()
                piece = piece[self._pass(connection, direction, piece, writer) :]
            await writer.drain()

    def _pass(self, connection: _Connection, direction: Direction, piece: bytes, writer: asyncio.StreamWriter) -> int:
        """Write a piece, as far as no trigger and no random reset ends it; how many bytes of it."""
        tail = connection.tail[direction]
        triggers = [one for one in self._triggers if one.direction == direction]
        places = [(place, one) for one in triggers if (place := one.place(tail, piece)) is not None]
        place, fires = min(places, key=lambda found: found[0], default=(len(piece), None))
        piece = piece[:place]
        for trigger in triggers:
            if trigger is not fires:
                trigger.count(tail, piece)
        writer.write(piece)
        self._bytes[direction] += len(piece)
        connection.tail[direction] = (tail + piece)[-_TAIL:]
        self._record(connection, direction, piece)
        connection.until_reset -= len(piece)
        if fires is not None:
            self._triggers.remove(fires)
            self._act(fires.action)
            fires.fired.set()
        elif connection.until_reset <= 0:
            connection.reset()
        return len(piece)

    def _record(self, connection: _Connection, direction: Direction, piece: bytes) -> None:
        if self._keep:
            self._kept += len(piece)
            if self._kept <= self._keep:
                connection.record[direction] += piece


class _Way:
    """Pieces on their way in one direction of one connection, each with the moment at which it arrives."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    async def put(self, when: float, piece: bytes) -> None:
        while self._size > _IN_FLIGHT:
            self._changed.clear()
            await self._changed.wait()
        self._pieces.append((when, piece))
        self._size += len(piece)
        self._changed.set()

    async def next(self) -> tuple[float, bytes]:
        while not self._pieces:
            self._changed.clear()
            await self._changed.wait()
        when, piece = self._pieces.popleft()
        self._size -= len(piece)
        self._changed.set()
        return when, piece


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of them; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
