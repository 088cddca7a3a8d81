"""The text engine as the service sees it: `EngineClient` implements `engine.api.Engine` over a supervised child process.

Imports no torch. Everything runs on one event loop and nothing in it waits for the engine longer than a stated bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgewise.core.log import Logger
from edgewise.engine.api import EngineInfo
from edgewise.engine.book import Action, RequestBook
from edgewise.engine.config import EngineConfig
from edgewise.engine.core import DEFAULT_FACTORY
from edgewise.engine.events import EngineEvent
from edgewise.engine.messages import Chunks, ToService
from edgewise.engine.process_client import ProcessClient
from edgewise.engine.request import GenerateRequest, TokenChunk
from edgewise.engine.stream import Mailbox
from edgewise.engine.timings import Timings


class EngineClient(ProcessClient[GenerateRequest, TokenChunk, EngineInfo]):
    """See `engine.process_client.ProcessClient`."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        factory: str = DEFAULT_FACTORY,
        timings: Timings | None = None,
        log: Logger | None = None,
        on_event: Callable[[EngineEvent], None] | None = None,
    ) -> None:
        timings = timings or Timings()
        self._book = RequestBook(strike_limit=timings.strikes)
        super().__init__(self._book, config, factory=factory, timings=timings, log=log, on_event=on_event)

    def engine_up(self, epoch: int, info: EngineInfo) -> None:
        if self._info is not None and self._info.numeric_class != info.numeric_class and len(self._book):
            # Still a valid continuation, but no longer byte-equal to what an undisturbed run would have given.
            self._log.warning("engine_numeric_class_changed", before=self._info.numeric_class, now=info.numeric_class)
        super().engine_up(epoch, info)

    def _resume(self, epoch: int, info: EngineInfo, now: float) -> list[Action]:
        return self._book.up(epoch, info.max_context, now)

    def _chunks_of(self, message: ToService) -> tuple[int, Sequence[TokenChunk]] | None:
        return (message.epoch, message.chunks) if isinstance(message, Chunks) else None

    def _is_progress(self, chunk: TokenChunk) -> bool:
        return bool(chunk.tokens)

    def _mailbox(self) -> Mailbox[TokenChunk]:
        return Mailbox()
