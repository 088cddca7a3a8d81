"""An encoder's process as the service sees it: `EncoderClient` implements `EncoderEngine` over a supervised child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgewise.core.log import Logger
from edgewise.engine.book_base import Action
from edgewise.engine.encoders.book import EncoderBook
from edgewise.engine.encoders.config import ENCODER_FACTORY, EncoderConfig
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest, EncoderInfo, merge_parts
from edgewise.engine.events import EngineEvent
from edgewise.engine.messages import EncodeChunks, ToService
from edgewise.engine.process_client import ProcessClient
from edgewise.engine.stream import Mailbox
from edgewise.engine.timings import Timings


class EncoderClient(ProcessClient[EncodeRequest, EncodeChunk, EncoderInfo]):
    """See `engine.process_client.ProcessClient`."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        factory: str = ENCODER_FACTORY,
        timings: Timings | None = None,
        log: Logger | None = None,
        on_event: Callable[[EngineEvent], None] | None = None,
    ) -> None:
        timings = timings or Timings()
        book = EncoderBook(strike_limit=timings.strikes)
        super().__init__(book, config, factory=factory, timings=timings, log=log, on_event=on_event)

    def _resume(self, epoch: int, info: EncoderInfo, now: float) -> list[Action]:
        del info
        return self._requests.begin(epoch, now)

    def _chunks_of(self, message: ToService) -> tuple[int, Sequence[EncodeChunk]] | None:
        return (message.epoch, message.chunks) if isinstance(message, EncodeChunks) else None

    def _is_progress(self, chunk: EncodeChunk) -> bool:
        return chunk.finish in (None, "done")

    def _mailbox(self) -> Mailbox[EncodeChunk]:
        return Mailbox(merge_parts)
