"""The service's end of the socket on an asyncio loop. Nothing here ever waits."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from edgewise.core.errors import EdgewiseError, EngineFault
from edgewise.engine.messages import Message, Stop, ToService, apart, decode_to_service
from edgewise.engine.transport import Frame, FrameReader, FrameWriter, PeerClosed, frame_of


class Channel:
    """Calls `on_message` for every message that comes, `on_unsent` for one that cannot be sent (too large, no shared memory),
    and `on_lost` once, with the reason, when the connection is of no more use.

    Works with every event loop that has `add_reader` (asyncio's selector loop, uvloop).
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_message: Callable[[ToService], None],
        on_unsent: Callable[[Message, EdgewiseError], None],
        on_lost: Callable[[EdgewiseError], None],
    ) -> None:
        self._sock = sock
        self._on_message = on_message
        self._on_unsent = on_unsent
        self._on_lost = on_lost
        self._outgoing: deque[Message] = deque()
        self._taken: Message = Stop()
        self._reader = FrameReader(sock, decode_to_service)
        self._writer = FrameWriter(sock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing = False
        self._framing: asyncio.Future[Frame] | None = None
        self._framed: Frame | None = None

    def __repr__(self) -> str:
        return f"Channel(open={self._loop is not None}, unsent={len(self._outgoing)})"

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sock.setblocking(False)
        self._loop = loop
        loop.add_reader(self._sock, self._read)

    def send(self, message: Message) -> None:
        """Send, or keep until the engine reads on; silently dropped when the connection is lost (`on_lost` has told)."""
        if self._loop is None:
            return
        self._outgoing.append(message)
        if not self._writing:
            self._write()

    def read_rest(self) -> None:
        """Take what the engine had sent before it died."""
        if self._loop is None:
            return
        try:
            while (messages := self._reader.read()) is not None:
                for message in messages:
                    self._on_message(message)
        except EdgewiseError as error:
            self._lose(error)

    def close(self) -> None:
        """Release the socket; unsent messages are dropped. Safe to call twice."""
        if self._loop is not None:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._loop = None
        self._outgoing.clear()
        if self._framed is not None:
            self._framed.close()
            self._framed = None
        self._reader.close()
        self._writer.close()
        self._sock.close()

    def _read(self) -> None:
        try:
            for message in self._reader.read() or ():
                self._on_message(message)
        except EdgewiseError as error:
            self._lose(error)

    def _write(self) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            full = not self._flush()
        except PeerClosed:
            self._outgoing.clear()  # the reader finds the end too, after the engine's last messages
            full = False
        if full and not self._writing:
            loop.add_writer(self._sock, self._write)
        elif self._writing and not full:
            loop.remove_writer(self._sock)
        self._writing = full

    def _flush(self) -> bool:
        """Send what the socket takes; a message that cannot be sent at all is reported and left out."""
        while True:
            try:
                return self._writer.flush(self._next)
            except PeerClosed:
                raise
            except EdgewiseError as error:
                self._on_unsent(self._taken, error)

    def _next(self) -> Message | Frame | None:
        """What is sent now. A message with large contents is made ready on a thread first; those behind it wait."""
        if self._framed is not None:
            frame, self._framed = self._framed, None
            return frame
        if not self._outgoing or self._framing is not None or self._loop is None:
            return None
        self._taken = self._outgoing.popleft()
        if not apart(self._taken)[1]:
            return self._taken
        self._framing = self._loop.run_in_executor(None, frame_of, self._taken)
        self._framing.add_done_callback(self._made_ready)
        return None

    def _made_ready(self, framing: asyncio.Future[Frame]) -> None:
        self._framing = None
        if framing.cancelled():
            return
        error = framing.exception()
        if self._loop is None:  # closed meanwhile
            if error is None:
                framing.result().close()
            return
        if error is not None:
            fault = error if isinstance(error, EdgewiseError) else EngineFault(f"A request cannot be sent: {error}.")
            self._on_unsent(self._taken, fault)
        else:
            self._framed = framing.result()
        if not self._writing:
            self._write()

    def _lose(self, error: EdgewiseError) -> None:
        self.close()
        self._on_lost(error)
