"""The text engine as the service sees it: `EngineClient` implements `engine.api.Engine` over a supervised child process.

Imports no torch. Everything runs on one event loop and nothing in it waits for the engine longer than a stated bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from edgewise.core.errors import EngineUnavailable
from edgewise.core.log import Logger
from edgewise.engine.api import EngineInfo
from edgewise.engine.book import Action, RequestBook
from edgewise.engine.config import EngineConfig
from edgewise.engine.core import DEFAULT_FACTORY
from edgewise.engine.events import EngineEvent
from edgewise.engine.messages import Chunks, PageAction, PageForm, PageOrder, PageReply, ToService
from edgewise.engine.prefix import PageHash
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
        self._page_orders = 0
        self._page_replies: dict[int, asyncio.Future[PageReply]] = {}
        super().__init__(self._book, config, factory=factory, timings=timings, log=log, on_event=on_event)

    async def pages(
        self,
        action: PageAction,
        names: Sequence[PageHash],
        *,
        lasting: Sequence[PageHash] = (),
        contents: Sequence[bytes] = (),
        form: PageForm = "exact",
    ) -> PageReply:
        """Have the engine carry a `PageOrder` out.

        Raises:
            EngineUnavailable: There is none, it ended, or it did not answer within `patience_s`.
        """
        supervisor = self._supervisor
        if supervisor is None or not self._ready.is_set():
            raise EngineUnavailable("The engine is not ready.")
        number = self._page_orders = self._page_orders + 1
        answer: asyncio.Future[PageReply] = asyncio.get_running_loop().create_future()
        self._page_replies[number] = answer
        try:
            supervisor.send(
                PageOrder(
                    id=number,
                    action=action,
                    names=b"".join(names),
                    lasting=b"".join(lasting),
                    contents=tuple(contents),
                    form=form,
                )
            )
            await asyncio.wait({answer}, timeout=self._timings.patience_s)
            if not answer.done():
                raise EngineUnavailable("The engine was too busy to move pages.")
            return answer.result()
        finally:
            del self._page_replies[number]

    def engine_message(self, message: ToService) -> None:
        if not isinstance(message, PageReply):
            super().engine_message(message)
            return
        answer = self._page_replies.get(message.id)  # nobody waits any more for one that is late
        if answer is not None and not answer.done():
            answer.set_result(message)

    def engine_down(self) -> None:
        super().engine_down()
        for answer in self._page_replies.values():
            if not answer.done():
                answer.set_exception(EngineUnavailable("The engine ended while it moved pages."))

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
        return bool(chunk.tokens) or chunk.sound is not None

    def _mailbox(self) -> Mailbox[TokenChunk]:
        return Mailbox()
