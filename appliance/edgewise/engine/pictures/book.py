"""What has been delivered of each open picture, and how it is drawn again in the engine's next life. Pure.

The rules of all requests are those of `engine.book_base`. A picture is a function of its parameters and its seed: after a crash
it is drawn again from the beginning, and progress below what its consumer has seen is left out. Progress beyond it clears the
strikes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from msgspec import structs

from edgewise.core.errors import EdgewiseError
from edgewise.engine.book_base import Action, Book, Deliver, Ending, Entry
from edgewise.engine.messages import SubmitPicture
from edgewise.engine.pictures.request import DiffuseChunk, DiffuseRequest


@dataclass(slots=True)
class PictureEntry(Entry[DiffuseRequest]):
    """An open picture; `steps` of `total` have been delivered."""

    steps: int = 0
    total: int = 0


@dataclass(slots=True, repr=False)
class PictureBook(Book[DiffuseRequest, DiffuseChunk, PictureEntry]):
    """See the module's docstring."""

    def _entry(self, key: str, request: DiffuseRequest, now: float) -> PictureEntry:
        submission = SubmitPicture.of(replace(request, id=key))
        return PictureEntry(key=key, request=request, submission=submission, opened=now)

    def _message(self, entry: PictureEntry, left_s: float | None) -> SubmitPicture:
        return structs.replace(cast("SubmitPicture", entry.submission), deadline_s=left_s)

    def _chunk(self, entry: PictureEntry, chunk: DiffuseChunk, now: float) -> list[Action]:
        if chunk.offset > entry.steps:
            return self._skipped(entry, chunk.offset, now)
        reached = chunk.offset + chunk.count
        news = reached - entry.steps
        if news <= 0 and chunk.finish is None:
            self.counters.stale += 1
            return []
        if news > 0:
            entry.strikes = 0
            entry.steps = reached
        entry.total = chunk.total
        actions = self.accepted_if_new(entry)
        if chunk.finish is not None:
            self._forget(entry)
        stats = chunk.stats and replace(chunk.stats, restarts=entry.restarts)
        told = replace(
            chunk, request_id=entry.request.id, offset=entry.steps - max(news, 0), count=max(news, 0), stats=stats
        )
        actions.append(Deliver(entry.key, told))
        return actions + self._admit(now) if self._held else actions

    def _ended(self, entry: PictureEntry, finish: Ending, error: EdgewiseError, now: float) -> DiffuseChunk:
        del now
        return DiffuseChunk(
            request_id=entry.request.id,
            offset=entry.steps,
            count=0,
            total=entry.total,
            finish=finish,
            error_code=error.code,
            error_message=error.message,
        )

    def _reached(self, entry: PictureEntry) -> str:
        return f"{entry.steps} steps"
