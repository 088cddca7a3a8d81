"""Chunks of a job brought into order: what is new of each, whether repetitions agree, and whether the whole is what was made.

Pure bookkeeping, without time or network. The same chunk may arrive twice, in pieces, or after a later one was asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from edgewise.core.errors import EngineFault, LinkLost
from edgewise.engine.request import TokenLogprobs
from edgewise.wire.messages import Chunk, Final, Unit
from edgewise.wire.stream_log import Place, StreamHash


class Fresh(NamedTuple):
    """Tokens that were not there before; `offset` counts those of the answer before them."""

    offset: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None


class Writer(Protocol):
    """Makes tokens of a text, so that they decode to exactly it."""

    def tokens_of(self, text: str, /) -> tuple[int, ...]: ...


class StreamBook(Protocol):
    """What has arrived of one job."""

    @property
    def place(self) -> Place:
        """How far it has come, for `from=`."""

    def take(self, chunk: Chunk) -> Fresh:
        """What is new of a chunk; nothing where all of it is there already.

        Raises:
            LinkLost: Items between are missing: they must be asked for again.
            EngineFault: Items that were delivered come again as others, or the chunk is malformed.
        """

    def check(self, final: Final) -> None:
        """Raises `EngineFault` unless everything that was made has arrived as it was made."""


class TokenBook:
    """Of a back end that speaks tokens. `output` are those that the caller had before the job began."""

    def __init__(self, output: Sequence[int]) -> None:
        self._tokens = list(output)
        self._attempt = 0

    @property
    def place(self) -> Place:
        return Place(self._attempt, len(self._tokens))

    def take(self, chunk: Chunk) -> Fresh:
        tokens = chunk.tokens or ()
        if len(tokens) != chunk.count:
            raise EngineFault(
                f"The cloud's chunk before {chunk.place} names {chunk.count} tokens and holds {len(tokens)}."
            )
        have = len(self._tokens)
        known = _known(chunk, have)
        if tuple(self._tokens[chunk.offset : chunk.offset + known]) != tokens[:known]:
            raise _changed(chunk)
        self._attempt = max(self._attempt, chunk.attempt)
        fresh = tokens[known:]
        self._tokens += fresh
        logprobs = None if chunk.logprobs is None else tuple(map(_logprobs, fresh, chunk.logprobs[known:]))
        return Fresh(have, fresh, logprobs)

    def begin_again(self) -> tuple[int, ...]:
        """Everything so far, from which another job goes on; its attempts are counted from the first."""
        self._attempt = 0
        return tuple(self._tokens)

    def check(self, final: Final) -> None:
        made = StreamHash()
        made.tokens(self._tokens)
        _compare(final, "tokens", len(self._tokens), made)


class TextBook:
    """Of a back end that speaks text: offsets on the wire count characters of this job, those handed on count tokens."""

    def __init__(self, output: Sequence[int], writer: Writer) -> None:
        self._writer = writer
        self._count = len(output)
        self._text = ""
        self._attempt = 0

    @property
    def place(self) -> Place:
        return Place(self._attempt, len(self._text))

    def take(self, chunk: Chunk) -> Fresh:
        text = chunk.text or ""
        if len(text) != chunk.count:
            raise EngineFault(
                f"The cloud's chunk before {chunk.place} names {chunk.count} characters and holds {len(text)}."
            )
        known = _known(chunk, len(self._text))
        if self._text[chunk.offset : chunk.offset + known] != text[:known]:
            raise _changed(chunk)
        self._attempt = max(self._attempt, chunk.attempt)
        self._text += text[known:]
        tokens = self._writer.tokens_of(text[known:])
        offset, self._count = self._count, self._count + len(tokens)
        return Fresh(offset, tokens)

    def check(self, final: Final) -> None:
        made = StreamHash()
        made.text(self._text)
        _compare(final, "characters", len(self._text), made)


def _known(chunk: Chunk, have: int) -> int:
    """How many of the chunk's items are there already."""
    if chunk.offset > have:
        raise LinkLost(f"The cloud's stream jumped to item {chunk.offset} where {have} had arrived.")
    return min(chunk.count, have - chunk.offset)


def _changed(chunk: Chunk) -> EngineFault:
    return EngineFault(f"The cloud's chunk before {chunk.place} repeats items that it had delivered, as others.")


def _compare(final: Final, unit: Unit, count: int, made: StreamHash) -> None:
    if final.count != count:
        raise EngineFault(f"The cloud made {final.count} {final.unit}, but {count} {unit} arrived: the answer is cut.")
    if final.sha256 is not None and final.sha256 != made.hexdigest():
        raise EngineFault(f"The {count} {unit} that arrived are not those that the cloud made: their hashes differ.")


def _logprobs(token: int, raw: Any) -> TokenLogprobs:
    try:
        logprob, top = raw
        return TokenLogprobs(
            token=token, logprob=float(logprob), top=tuple((int(id), float(value)) for id, value in top)
        )
    except (TypeError, ValueError) as error:
        raise EngineFault(f"The cloud sent a log probability of another form: {str(raw)[:100]}.") from error
