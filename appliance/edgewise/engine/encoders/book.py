"""Open requests of an encoder's process: one answer each, asked for again after a crash. Pure; rules in `engine.book_base`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from msgspec import structs

from edgewise.core.errors import EdgewiseError
from edgewise.engine.book_base import Action, Book, Deliver, Ending, Entry
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.engine.messages import SubmitEncode


@dataclass(slots=True, repr=False)
class EncoderBook(Book[EncodeRequest, EncodeChunk, Entry[EncodeRequest]]):
    """See the module's docstring."""

    def _entry(self, key: str, request: EncodeRequest, now: float) -> Entry[EncodeRequest]:
        return Entry(key=key, request=request, submission=SubmitEncode.of(replace(request, id=key)), opened=now)

    def _message(self, entry: Entry[EncodeRequest], left_s: float | None) -> SubmitEncode:
        return structs.replace(cast("SubmitEncode", entry.submission), deadline_s=left_s)

    def _chunk(self, entry: Entry[EncodeRequest], chunk: EncodeChunk, now: float) -> list[Action]:
        actions = self.accepted_if_new(entry)
        self._forget(entry)
        stats = chunk.stats and replace(chunk.stats, restarts=entry.restarts)
        actions.append(Deliver(entry.key, replace(chunk, request_id=entry.request.id, stats=stats)))
        return actions + self._admit(now) if self._held else actions

    def _ended(self, entry: Entry[EncodeRequest], finish: Ending, error: EdgewiseError, now: float) -> EncodeChunk:
        del now
        return EncodeChunk(
            request_id=entry.request.id, finish=finish, error_code=error.code, error_message=error.message
        )

    def _reached(self, entry: Entry[EncodeRequest]) -> str:
        del entry
        return "no result"
