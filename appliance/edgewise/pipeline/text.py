"""One sequence's tokens as the caller sees them: text, and beside it the tokens whose text has been shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from edgewise.engine.request import FinishReason, TokenLogprobs
from edgewise.engine.speech import Sound
from edgewise.pipeline.detokenize import Detokenizer
from edgewise.pipeline.model import Tokenizer
from edgewise.pipeline.stops import StopScanner
from edgewise.pipeline.tools.reading import CallReading
from edgewise.pipeline.tools.scanner import CallPiece, Found


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token with visible text.

    Attributes:
        offset: Character of the sequence's text that its first byte belongs to.
    """

    id: int
    offset: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of one tool call.

    Attributes:
        index: Number of the call in its answer, from 0.
        id, name: Set on the first piece of a call only.
        arguments: Next characters of the arguments' JSON text; may be empty.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


TextFinish = FinishReason | Literal["tool_calls", "content_filter"]
"""An answer that calls tools ends with "tool_calls" where the engine says "stop", unless that cuts a call off; one that a hook
ends with "content_filter"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChunk:
    """A piece of one sequence's answer, in order.

    Attributes:
        sequence: Index: prompt * n + answer.
        offset: Characters of this sequence before `text`.
        text: Whole characters only; may be empty.
        shown: Tokens whose text ends in this piece, with their log probabilities; their order and grouping follow the text, so
            joined over all pieces they do not depend on how tokens arrived. A stop token and tokens wholly inside a stop
            string are left out.
        token_ids: Every token consumed since the last piece, stop tokens included.
        finish: Set on the last piece only.
        stop: The stop string that ended the answer; on the last piece only.
        tool_calls: Pieces of tool calls, in order; their text is not part of `text`, but their tokens are among `shown`.
        parts: `text` and `tool_calls` in the order in which they were written; empty where the text comes first.
        sound: What is said next, of an answer that is spoken as well; its text has been told before.
    """

    sequence: int
    offset: int
    text: str
    shown: tuple[ShownToken, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish: TextFinish | None = None
    tool_calls: tuple[ToolCallDelta, ...] = ()
    stop: str | None = None
    parts: tuple[str | ToolCallDelta, ...] = ()
    sound: Sound | None = None

    @property
    def ordered(self) -> tuple[str | ToolCallDelta, ...]:
        """Text and pieces of calls in the order in which they were written."""
        return self.parts or ((self.text,) if self.text else ()) + self.tool_calls


def in_order(parts: Sequence[str | ToolCallDelta]) -> tuple[str | ToolCallDelta, ...]:
    """The `parts` of a chunk: neighbouring texts joined; nothing where all text comes before the calls."""
    merged: list[str | ToolCallDelta] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part:
            merged.append(part)
    return tuple(merged) if any(isinstance(part, str) for part in merged[1:]) else ()


@dataclass(frozen=True, slots=True)
class _Piece:
    token: ShownToken
    end: int


class TextAssembler:
    """Detokenizes one sequence, applies its stop strings and reads its tool calls; the only way from tokens to text, for every
    route.

    Args:
        reading: How tool calls are read; None takes everything for text.
        make_id: The id of a call, given its number.

    Attributes:
        count: Tokens consumed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        *,
        sequence: int = 0,
        reading: CallReading | None = None,
        make_id: Callable[[int], str] = "call_{}".format,
    ) -> None:
        self._sequence = sequence
        self._calls = None if reading is None else reading.scanner()
        self._make_id = make_id
        self._told = 0
        self._detokenizer = Detokenizer(tokenizer, None if reading is None else reading.revealed)
        self._scanner = StopScanner(stops)
        self._plain = reading is None and not stops
        self._held: deque[_Piece] = deque()
        self.count = 0

    @property
    def stopped(self) -> bool:
        """A stop string was found, or the one call that is allowed has ended: nothing that follows is shown."""
        return self._scanner.found is not None or (self._calls is not None and self._calls.finished)

    @property
    def cut_bytes(self) -> int:
        """Bytes of a character that the answer ends inside of; they are not shown."""
        return 0 if self.stopped else self._detokenizer.pending

    def feed(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None = None,
        finish: FinishReason | None = None,
        sound: Sound | None = None,
    ) -> TextChunk | None:
        """Take tokens; return what can be shown now, None for nothing.

        Args:
            tokens: Next tokens. With finish "stop" the last one is the stop token, which is not shown.
            logprobs: One per token.
            sound: That came with them; passed on.
        """
        if self._plain and len(tokens) == 1 and finish is None and sound is None and not self._held:
            return self._feed_one(tokens[0], logprobs[0] if logprobs else None)
        visible = len(tokens) - (finish == "stop")
        found: list[Found] = []
        consumed = 0
        for index, token in enumerate(tokens):
            if self.stopped:
                break
            consumed += 1
            if index < visible:
                found += self._read(self._push(token, logprobs[index] if logprobs else None))
        self.count += consumed
        if self.stopped:
            finish = "stop"
        elif finish is not None:
            found += self._read(self._scanner.flush())
        if finish is not None and self._calls is not None:
            found += self._calls.flush()
        shown = tuple(self._settle(last=finish is not None))
        parts = [piece if isinstance(piece, str) else self._delta(piece) for piece in found]
        text = "".join(part for part in parts if isinstance(part, str))
        if not (found or shown or consumed or finish or sound):
            return None
        offset, self._told = self._told, self._told + len(text)
        called = finish == "stop" and self._calls is not None and self._calls.calls > 0 and not self._calls.inside
        return TextChunk(
            sequence=self._sequence,
            offset=offset,
            text=text,
            shown=shown,
            token_ids=tuple(tokens[:consumed]),
            finish="tool_calls" if called else finish,
            tool_calls=tuple(part for part in parts if not isinstance(part, str)),
            parts=in_order(parts),
            stop=None if self._scanner.found is None else self._scanner.pattern,
            sound=sound,
        )

    def _feed_one(self, token: int, logprobs: TokenLogprobs | None) -> TextChunk:
        """`feed` where it is simplest, as for most tokens: nothing is held, looked for or read."""
        text = self._push(token, logprobs)
        self.count += 1
        shown = () if self._detokenizer.pending else (self._held.popleft().token,)
        offset, self._told = self._told, self._told + len(text)
        return TextChunk(sequence=self._sequence, offset=offset, text=text, shown=shown, token_ids=(token,))

    def _read(self, text: str) -> list[Found]:
        """Content and pieces of calls; without tools all is content."""
        if self._calls is not None:
            return self._calls.feed(text)
        return [text] if text else []

    def _delta(self, piece: CallPiece) -> ToolCallDelta:
        id = None if piece.name is None else self._make_id(piece.index)
        return ToolCallDelta(index=piece.index, id=id, name=piece.name, arguments=piece.arguments)

    def _push(self, token: int, logprobs: TokenLogprobs | None) -> str:
        start = self._detokenizer.position
        text = self._detokenizer.push(token)
        end = self._detokenizer.position + bool(self._detokenizer.pending)
        self._held.append(_Piece(ShownToken(token, start, logprobs), end))
        return self._scanner.feed(text)

    def _settle(self, *, last: bool) -> Iterable[ShownToken]:
        """Tokens whose text has been released; at the end also those cut by a stop string or by the end itself."""
        cut = self._scanner.found
        while self._held and (last or self._held[0].end <= self._scanner.released):
            piece = self._held.popleft()
            if cut is None or piece.token.offset < cut:
                yield piece.token
