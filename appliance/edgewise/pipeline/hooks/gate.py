"""Holds the end of an answer's text back until every filter has seen what follows, and ends the answer where one says so.

A match of up to `hold_back` characters is found before any of it is shown, however the text was divided: its last character
arrives while the `hold_back` characters before it are still held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from edgewise.pipeline.hooks.protocol import TextFilter
from edgewise.pipeline.text import ShownToken, TextChunk, ToolCallDelta, in_order

CONTEXT_CHARS = 256


class HeldText:
    """One text on its way to the caller.

    Attributes:
        released: Characters let through so far.
        cut: A filter ended it: nothing more is let through.
    """

    def __init__(
        self, filters: Sequence[TextFilter], check: Callable[[TextFilter, str, int, bool], Awaitable[int | None]]
    ) -> None:
        self._filters = filters
        self._check = check
        self._hold = max((one.hold_back for one in filters), default=0)
        self._context = ""
        self._held = ""
        self.released = 0
        self.cut = False

    @property
    def holds(self) -> bool:
        return bool(self._held)

    async def feed(self, text: str, *, last: bool) -> str:
        """Take text, return what may be shown now."""
        if self.cut or not (text or (last and self._held)):
            return ""
        self._held += text
        window, start = self._context + self._held, len(self._context)
        ends = [await self._check(one, window, start, last) for one in self._filters]
        found = [max(end, start) - start for end in ends if end is not None]
        if found:
            self.cut = True
            return self._release(min(found))
        return self._release(len(self._held) if last else max(0, len(self._held) - self._hold))

    def _release(self, count: int) -> str:
        shown, self._held = self._held[:count], "" if self.cut else self._held[count:]
        self.released += len(shown)
        self._context = (self._context + shown)[-CONTEXT_CHARS:]
        return shown


class Gate:
    """One answer's text and tool calls; pieces come out later and with other borders, but say the same.

    Args:
        make: A fresh `HeldText` for each text of the answer.
    """

    def __init__(self, make: Callable[[], HeldText]) -> None:
        self._make = make
        self._text = make()
        self._call: tuple[int, HeldText] | None = None
        self._tokens: deque[tuple[ShownToken, int]] = deque()
        self._ids: deque[tuple[tuple[int, ...], int]] = deque()

    async def feed(self, chunk: TextChunk) -> TextChunk | None:
        """What of the answer can be shown now; None for nothing."""
        last = chunk.finish is not None
        offset = self._text.released
        self._remember(chunk)
        parts = await self._parts(chunk.ordered, last=last)
        text = "".join(part for part in parts if isinstance(part, str))
        calls = tuple(part for part in parts if not isinstance(part, str))
        cut = self._cut
        shown, ids = self._settle(last=last and not cut)
        if not (text or calls or shown or ids or last or cut):
            return None
        return replace(
            chunk,
            offset=offset,
            text=text,
            shown=shown,
            token_ids=ids,
            tool_calls=calls,
            parts=in_order(parts),
            finish="content_filter" if cut else chunk.finish,
            stop=None if cut else chunk.stop,
        )

    @property
    def _cut(self) -> bool:
        return self._text.cut or (self._call is not None and self._call[1].cut)

    async def _parts(self, ordered: Sequence[str | ToolCallDelta], *, last: bool) -> list[str | ToolCallDelta]:
        """What can be shown now, in order: a text ends where a call begins, a call where a text or another call does."""
        made: list[str | ToolCallDelta] = []
        for part in ordered:
            made += await self._part(part)
            if self._cut:
                return made
        if last:
            made.append(await self._text.feed("", last=True))
            made += [] if self._text.cut else await self._flush_call()
        return made

    async def _part(self, part: str | ToolCallDelta) -> list[str | ToolCallDelta]:
        made: list[str | ToolCallDelta] = []
        if isinstance(part, str):
            made += await self._flush_call()
            return made if self._cut else [*made, await self._text.feed(part, last=False)]
        made.append(await self._text.feed("", last=True))
        if not self._cut and (self._call is None or self._call[0] != part.index):
            made += await self._flush_call()
            self._call = self._call if self._cut else (part.index, self._make())
        if self._cut or self._call is None:
            return made
        arguments = await self._call[1].feed(part.arguments, last=False)
        if arguments or part.name is not None:
            made.append(replace(part, arguments=arguments))
        return made

    async def _flush_call(self) -> list[ToolCallDelta]:
        if self._call is None:
            return []
        index, held = self._call
        rest = await held.feed("", last=True)
        return [ToolCallDelta(index=index, arguments=rest)] if rest else []

    def _remember(self, chunk: TextChunk) -> None:
        """Where the text of each token ends: where the next one's begins, or with the piece."""
        end = chunk.offset + len(chunk.text)
        ends = [max(after.offset, one.offset + 1) for one, after in zip(chunk.shown, chunk.shown[1:], strict=False)]
        self._tokens.extend(zip(chunk.shown, [*ends, end], strict=False))
        self._ids.append((chunk.token_ids, end))

    def _settle(self, *, last: bool) -> tuple[tuple[ShownToken, ...], tuple[int, ...]]:
        """Tokens all of whose text has been shown; those of an answer that was cut, only up to there."""
        limit = self._text.released
        held_call = self._call is not None and (self._call[1].holds or self._call[1].cut)
        shown: list[ShownToken] = []
        while self._tokens and (last or self._tokens[0][1] <= limit):
            shown.append(self._tokens.popleft()[0])
        ids: list[int] = []
        while self._ids and (last or (self._ids[0][1] <= limit and not held_call)):
            ids += self._ids.popleft()[0]
        return tuple(shown), tuple(ids)
