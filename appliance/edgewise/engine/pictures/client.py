"""The picture engine as the service sees it: `PictureClient` implements `PictureEngine` over a supervised child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgewise.core.log import Logger
from edgewise.engine.book_base import Action
from edgewise.engine.events import EngineEvent
from edgewise.engine.messages import PictureChunks, ToService
from edgewise.engine.pictures.book import PictureBook
from edgewise.engine.pictures.config import PICTURE_FACTORY, PictureConfig
from edgewise.engine.pictures.merge import merge
from edgewise.engine.pictures.request import DiffuseChunk, DiffuseRequest, PictureInfo
from edgewise.engine.process_client import ProcessClient
from edgewise.engine.stream import Mailbox
from edgewise.engine.timings import Timings


class PictureClient(ProcessClient[DiffuseRequest, DiffuseChunk, PictureInfo]):
    """See `engine.process_client.ProcessClient`."""

    def __init__(
        self,
        config: PictureConfig,
        *,
        factory: str = PICTURE_FACTORY,
        timings: Timings | None = None,
        log: Logger | None = None,
        on_event: Callable[[EngineEvent], None] | None = None,
    ) -> None:
        timings = timings or Timings()
        book = PictureBook(strike_limit=timings.strikes)
        super().__init__(book, config, factory=factory, timings=timings, log=log, on_event=on_event)

    def _resume(self, epoch: int, info: PictureInfo, now: float) -> list[Action]:
        del info
        return self._requests.begin(epoch, now)

    def _chunks_of(self, message: ToService) -> tuple[int, Sequence[DiffuseChunk]] | None:
        return (message.epoch, message.chunks) if isinstance(message, PictureChunks) else None

    def _is_progress(self, chunk: DiffuseChunk) -> bool:
        return chunk.count > 0

    def _mailbox(self) -> Mailbox[DiffuseChunk]:
        return Mailbox(merge)
