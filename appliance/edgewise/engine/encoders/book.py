"""Open requests of an encoder's process, asked for again after a crash, without the parts that have been delivered. Pure; rules
in `engine.book_base`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from msgspec import structs

from edgewise.core.errors import EdgewiseError
from edgewise.engine.book_base import Action, Book, Deliver, Ending, Entry
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.engine.messages import SubmitEncode


@dataclass(slots=True)
class EncoderEntry(Entry[EncodeRequest]):
    """An open request, of whose answer `parts` are there."""

    parts: int = 0


@dataclass(slots=True, repr=False)
class EncoderBook(Book[EncodeRequest, EncodeChunk, EncoderEntry]):
    """See the module's docstring."""

    def _entry(self, key: str, request: EncodeRequest, now: float) -> EncoderEntry:
        submission = SubmitEncode.of(replace(request, id=key))
        return EncoderEntry(key=key, request=request, submission=submission, opened=now, parts=request.skip)

    def _message(self, entry: EncoderEntry, left_s: float | None) -> SubmitEncode:
        return structs.replace(cast("SubmitEncode", entry.submission), deadline_s=left_s, skip=entry.parts)

    def _chunk(self, entry: EncoderEntry, chunk: EncodeChunk, now: float) -> list[Action]:
        made = chunk.finish in (None, "done")
        if made and chunk.offset != entry.parts:
            return self._skipped(entry, chunk.offset, now)
        actions = self.accepted_if_new(entry)
        if made:
            entry.strikes = 0
            entry.parts += 1
        if chunk.finish is not None:
            self._forget(entry)
        stats = chunk.stats and replace(chunk.stats, restarts=entry.restarts)
        actions.append(Deliver(entry.key, replace(chunk, request_id=entry.request.id, stats=stats)))
        return actions + self._admit(now) if self._held else actions

    def _ended(self, entry: EncoderEntry, finish: Ending, error: EdgewiseError, now: float) -> EncodeChunk:
        del now
        return EncodeChunk(
            request_id=entry.request.id,
            finish=finish,
            offset=entry.parts,
            error_code=error.code,
            error_message=error.message,
        )

    def _reached(self, entry: EncoderEntry) -> str:
        return f"{entry.parts} parts" if entry.parts else "no result"
