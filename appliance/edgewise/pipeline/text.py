"""One sequence's tokens as the caller sees them: text, and beside it the tokens whose text has been shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from edgewise.engine.request import FinishReason, TokenLogprobs
from edgewise.pipeline.detokenize import Detokenizer
from edgewise.pipeline.model import Tokenizer
from edgewise.pipeline.stops import StopScanner


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
"""An answer that calls tools ends with "tool_calls" where the engine says "stop"; one that a hook ends with "content_filter"."""


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
        tool_calls: Pieces of tool calls, in order; their text is not part of `text`.
    """

    sequence: int
    offset: int
    text: str
    shown: tuple[ShownToken, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish: TextFinish | None = None
    tool_calls: tuple[ToolCallDelta, ...] = ()
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    token: ShownToken
    end: int


class TextAssembler:
    """Detokenizes one sequence and applies its stop strings; the only way from tokens to text, for every route.

    Attributes:
        count: Tokens consumed.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, sequence: int = 0) -> None:
        self._sequence = sequence
        self._detokenizer = Detokenizer(tokenizer)
        self._scanner = StopScanner(stops)
        self._held: deque[_Piece] = deque()
        self.count = 0

    @property
    def stopped(self) -> bool:
        """A stop string was found: nothing that follows is shown."""
        return self._scanner.found is not None

    @property
    def cut_bytes(self) -> int:
        """Bytes of a character that the answer ends inside of; they are not shown."""
        return 0 if self.stopped else self._detokenizer.pending

    def feed(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None = None,
        finish: FinishReason | None = None,
    ) -> TextChunk | None:
        """Take tokens; return what can be shown now, None for nothing.

        Args:
            tokens: Next tokens. With finish "stop" the last one is the stop token, which is not shown.
            logprobs: One per token.
        """
        offset = self._scanner.released
        visible = len(tokens) - (finish == "stop")
        text: list[str] = []
        consumed = 0
        for index, token in enumerate(tokens):
            if self.stopped:
                break
            consumed += 1
            if index < visible:
                text.append(self._push(token, logprobs[index] if logprobs else None))
        self.count += consumed
        if self.stopped:
            finish = "stop"
        elif finish is not None:
            text.append(self._scanner.flush())
        shown = tuple(self._settle(last=finish is not None))
        joined = "".join(text)
        if not (joined or shown or consumed or finish):
            return None
        return TextChunk(
            sequence=self._sequence,
            offset=offset,
            text=joined,
            shown=shown,
            token_ids=tuple(tokens[:consumed]),
            finish=finish,
            stop=self._scanner.pattern if self.stopped else None,
        )

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
