"""The engine process: `python -m edgewise.engine.worker --fd N --parent PID --factory module:function`.

Two threads. The main thread turns the loop: take messages, step, hand chunks over; when there is no work it blocks until a
message comes. The link thread owns the socket's reading end, sends what the socket did not take at once, and beats. The socket's
end of file ends the process at once, also in the middle of a step: there is nobody left to answer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import select
import socket
import threading
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from edgewise.core.collector import lasting
from edgewise.core.errors import EdgewiseError, EngineFault
from edgewise.engine.api import EngineInfo
from edgewise.engine.child import EXIT_FAULT, EXIT_ORPHAN, begin, last_words, leave, limit_caches, limit_threads
from edgewise.engine.config import EngineConfig
from edgewise.engine.core import CoreLost, EngineCore, Guarded, HoldsPages, Limited, load_factory
from edgewise.engine.encoders.request import EncoderInfo
from edgewise.engine.heartbeat import StepClock
from edgewise.engine.messages import (
    Accepted,
    AnyConfig,
    CacheCleared,
    Cancel,
    ClearCache,
    EncoderReady,
    Fault,
    Limit,
    MemoryQuery,
    MemoryReply,
    Notice,
    PageOrder,
    PageReply,
    PicturesReady,
    Progress,
    Ready,
    Refused,
    Start,
    StartEncoder,
    StartPictures,
    StatsQuery,
    StatsReply,
    Stop,
    Submit,
    SubmitEncode,
    SubmitPicture,
    ToEngine,
    ToService,
    decode_to_engine,
)
from edgewise.engine.outbox import Outbox
from edgewise.engine.pictures.request import PictureInfo
from edgewise.engine.transport import FrameReader, FrameWriter, PeerClosed
from edgewise.engine.turns import Table, TextTurns

_LAST_WORDS_S = 2.0


class Link(threading.Thread):
    """The socket: messages in to `inbox`, everything out through `outbox`, a heartbeat in between."""

    def __init__(self, sock: socket.socket, clock: StepClock) -> None:
        super().__init__(name="engine-link", daemon=True)
        sock.setblocking(False)
        self.inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self.outbox = Outbox(FrameWriter(sock))
        self.heartbeat_s = 1.0
        self.closing = False
        self._sock = sock
        self._reader = FrameReader(sock, decode_to_engine)
        self._clock = clock
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._blocked = False

    def wake(self) -> None:
        """Called when the socket was full or the settings changed: look at the outbox again."""
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        try:
            self._loop()
        except PeerClosed:
            os._exit(0 if self.closing else EXIT_ORPHAN)
        except BaseException:  # noqa: BLE001 - outermost frame of the thread; a process without its link is of no use
            traceback.print_exc()
            os._exit(EXIT_FAULT)

    def _loop(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        next_beat = time.monotonic()
        while True:
            poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._blocked else 0))
            ready = dict(poll.poll(max(0.0, next_beat - time.monotonic()) * 1000))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if ready.get(self._sock.fileno(), 0) & ~select.POLLOUT:
                self._receive()
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + self.heartbeat_s
                self.outbox.put(self._clock.beat(self.outbox.epoch))
            self._blocked = not self.outbox.flush()

    def _receive(self) -> None:
        while (messages := self._reader.read()) is not None:
            for message in messages:
                self.inbox.put(message)


class Worker:
    """The main thread's part: build the core, then serve until told to stop."""

    def __init__(self, link: Link, clock: StepClock, factory: str) -> None:
        self._link = link
        self._clock = clock
        self._factory = factory
        self._stopping = False

    def run(self) -> None:
        """Return after a `Stop`; whatever the core raises passes through."""
        start = self._link.inbox.get()
        if not isinstance(start, (Start, StartPictures, StartEncoder)):
            if isinstance(start, Stop):
                return
            raise TypeError(f"the first message is {type(start).__name__}, not Start")
        self._link.outbox.epoch = start.epoch
        self._link.heartbeat_s = start.heartbeat_s
        self._link.wake()
        core = self._build(start.config)
        self._send(_ready(start.epoch, core.info))
        core.listen(lambda kind, message: self._send(Notice(kind=kind, message=message)))
        if isinstance(core, Guarded):
            core.guard(
                lambda reason: _leave(
                    self._link, Fault(code=EngineFault.code, message=reason, traceback=""), EXIT_FAULT
                )
            )
        turns = None
        if isinstance(start.config, EngineConfig):
            self._link.outbox.interval_s = start.config.stream_interval_s
            if start.config.turns is not None:
                turns = TextTurns(Table(Path(start.config.turns)), before_pause=self._flush)
        self._serve(core, turns)
        core.close()  # not after a fault: the state is unknown then, and the kernel releases everything

    def _build(self, config: AnyConfig) -> EngineCore:
        limit_threads(config.threads or len(os.sched_getaffinity(0)))  # read by the libraries when first imported
        limit_caches()
        with lasting():
            factory = load_factory(self._factory)
        return factory(config, self._progress)

    def _progress(self, stage: str, fraction: float) -> None:
        self._send(Progress(stage=stage, fraction=fraction))

    def _serve(self, core: EngineCore, turns: TextTurns | None) -> None:
        while True:
            if turns is not None and not core.has_work:
                turns.idle()
            messages = self._take(wait=not core.has_work)
            self._clock.begin()
            for message in messages:
                self._handle(core, message)
            if self._stopping:
                return
            if core.has_work:
                with turns.step() if turns is not None else nullcontext():
                    chunks = core.step()
                if not self._link.outbox.put_chunks(chunks, more=core.has_work):
                    self._link.wake()
                if turns is not None:
                    turns.between()
            self._clock.end()

    def _take(self, *, wait: bool) -> list[ToEngine]:
        inbox = self._link.inbox
        messages = [inbox.get()] if wait else []
        while not inbox.empty():
            messages.append(inbox.get())
        return messages

    def _handle(self, core: EngineCore, message: ToEngine) -> None:
        match message:
            case Submit() | SubmitPicture() | SubmitEncode():
                self._submit(core, message)
            case Cancel(id=request_id):
                core.cancel(request_id)
            case StatsQuery():
                self._send(StatsReply(stats=core.stats()))
            case MemoryQuery():
                self._send(MemoryReply(memory=core.memory()))
            case ClearCache(tier=tier):
                self._send(CacheCleared(pages=core.clear_cache(tier)))
            case PageOrder():
                holder = core if isinstance(core, HoldsPages) else None
                self._send(PageReply(id=message.id, count=0) if holder is None else holder.pages(message))
            case Limit(max_running=max_running, pace=pace):
                if isinstance(core, Limited):
                    core.limit(max_running, pace)
            case Stop():
                self._stopping = True
            case Start() | StartPictures() | StartEncoder():
                raise TypeError("a second Start")

    def _submit(self, core: EngineCore, message: Submit | SubmitPicture | SubmitEncode) -> None:
        epoch = self._link.outbox.epoch
        if isinstance(message, Submit) and message.whole:
            self._link.outbox.whole.add(message.id)
        try:
            core.add(message.request())
        except CoreLost:
            raise
        except EdgewiseError as error:
            self._link.outbox.whole.discard(message.id)
            self._send(
                Refused(
                    epoch=epoch,
                    id=message.id,
                    code=error.code,
                    message=error.message,
                    param=error.param,
                    retry_after_s=error.retry_after_s,
                )
            )
        else:
            self._send(Accepted(epoch=epoch, id=message.id))

    def _flush(self) -> None:
        if not self._link.outbox.flush():
            self._link.wake()

    def _send(self, message: ToService) -> None:
        if not self._link.outbox.put(message):
            self._link.wake()


def _ready(epoch: int, info: EngineInfo | PictureInfo | EncoderInfo) -> Ready | PicturesReady | EncoderReady:
    if isinstance(info, PictureInfo):
        return PicturesReady(epoch=epoch, info=info)
    if isinstance(info, EncoderInfo):
        return EncoderReady(epoch=epoch, info=info)
    return Ready(epoch=epoch, info=info)


def main(arguments: list[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog="edgewise.engine.worker", description="Engine process; started by the service."
    )
    parser.add_argument("--factory", required=True, help="module:function that builds the engine")
    options, sock = begin(parser, arguments)
    clock = StepClock()
    link = Link(sock, clock)
    link.start()
    try:
        Worker(link, clock, options.factory).run()
    except PeerClosed:
        os._exit(EXIT_ORPHAN)
    except Exception as error:  # noqa: BLE001 - outermost frame: reported to the service and to the log, then the process ends
        _leave(link, Fault(**last_words(error)), EXIT_FAULT)
    _leave(link, None, 0)


def _leave(link: Link, fault: Fault | None, status: int) -> NoReturn:
    """Exit once the service has what is left to say, or does not read it."""
    link.closing = fault is None
    with contextlib.suppress(PeerClosed):  # nobody listens any more
        if fault is not None:
            link.outbox.put(fault)
        link.outbox.flush_until(time.monotonic() + _LAST_WORDS_S)
    leave(status)


if __name__ == "__main__":
    main()
