"""What has been delivered of each open text request, and how it goes on in the engine's next life. Pure.

The rules of all requests are those of `engine.book_base`. A request for tokens is sent again with everything delivered so far as
`output`, which continues it exactly. Three more rules hold for it:

- **Double.** Tokens below the offset reached are cut off; a chunk above it means that something was lost and ends the request
  with `engine_error`. A delivered token clears the strikes.
- **Sound.** Of a spoken answer, samples below those delivered are cut off. It is made again from its beginning in the next life:
  what was said is a function of the request, but for rounding where pieces of another size are joined.
- **Complete without the engine.** If the tokens delivered end with a stop id, or number `max_tokens`, or fill the model's
  context, only the final chunk was lost: it is made here ("stop" before "length") instead of asking an engine to generate
  nothing. A spoken answer is not complete by its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from msgspec import structs

from edgewise.core.errors import EdgewiseError
from edgewise.engine.book_base import Accept, Action, Book, Deliver, Ending, Refuse, Send
from edgewise.engine.book_base import Entry as OpenEntry
from edgewise.engine.messages import Submit, pack
from edgewise.engine.request import FinishReason, GenerateRequest, RequestStats, TokenChunk

__all__ = ["Accept", "Action", "Deliver", "Entry", "Refuse", "RequestBook", "Send"]


@dataclass(slots=True)
class Entry(OpenEntry[GenerateRequest]):
    """An open request; `output` are the tokens delivered, those the caller already had included, `heard` the samples."""

    output: list[int] = field(default_factory=list)
    heard: int = 0
    first_token: float | None = None


@dataclass(slots=True, repr=False)
class RequestBook(Book[GenerateRequest, TokenChunk, Entry]):
    """See the module's docstring. Methods return what is to be done, in order; `now` is a monotonic time in seconds."""

    max_context: int | None = None

    def up(self, epoch: int, max_context: int, now: float) -> list[Action]:
        """A life has begun: send what is open."""
        self.max_context = max_context
        return self.begin(epoch, now)

    def _entry(self, key: str, request: GenerateRequest, now: float) -> Entry:
        """Raises `InvalidRequest` if a token id is no unsigned 32-bit number."""
        submission = Submit.of(replace(request, id=key))
        return Entry(key=key, request=request, submission=submission, opened=now, output=list(request.output))

    def _message(self, entry: Entry, left_s: float | None) -> Submit:
        submission = cast("Submit", entry.submission)
        return structs.replace(submission, output=pack(entry.output, "output"), deadline_s=left_s)

    def _chunk(self, entry: Entry, chunk: TokenChunk, now: float) -> list[Action]:
        reached = len(entry.output)
        if chunk.offset > reached:
            return self._skipped(entry, chunk.offset, now)
        chunk = _without_first(chunk, reached - chunk.offset)
        if chunk.sound is not None:
            if chunk.sound.start > entry.heard:
                return self._skipped(entry, chunk.offset, now)
            chunk = replace(chunk, sound=chunk.sound.after(entry.heard))
        if not chunk.tokens and chunk.finish is None and chunk.sound is None:
            self.counters.stale += 1
            return []
        actions = self.accepted_if_new(entry)
        if chunk.sound is not None:
            entry.heard += chunk.sound.count
            entry.strikes = 0
        if chunk.tokens:
            entry.output += chunk.tokens
            entry.strikes = 0
            entry.first_token = now if entry.first_token is None else entry.first_token
        if chunk.finish is not None:
            self._forget(entry)
        actions.append(Deliver(entry.key, _relabel(entry, chunk, now)))
        return actions + self._admit(now) if self._held else actions

    def _finish_if_complete(self, entry: Entry, now: float) -> list[Action]:
        finish = _completed(entry, self.max_context)
        if finish is None:
            return []
        self._forget(entry)
        return [*self.accepted_if_new(entry), Deliver(entry.key, _final(entry, finish, now))]

    def _ended(self, entry: Entry, finish: Ending, error: EdgewiseError, now: float) -> TokenChunk:
        return replace(_final(entry, finish, now), error_code=error.code, error_message=error.message)

    def _reached(self, entry: Entry) -> str:
        return f"{len(entry.output)} tokens"


def _completed(entry: Entry, max_context: int | None) -> FinishReason | None:
    """How a request ends whose tokens are all there, or None if the engine has still something to do."""
    sampling, output = entry.request.sampling, entry.output
    if entry.request.speech is not None:
        return None
    if output and output[-1] in sampling.stop_token_ids:
        return "stop"
    if len(output) >= sampling.max_tokens:
        return "length"
    if output and max_context is not None and len(entry.request.prompt) + len(output) >= max_context:
        return "length"
    return None


def _without_first(chunk: TokenChunk, count: int) -> TokenChunk:
    if count == 0:
        return chunk
    logprobs = None if chunk.logprobs is None else chunk.logprobs[count:]
    tokens = chunk.tokens[count:]
    gaps = chunk.gaps[-len(tokens) :] if tokens else ()
    return replace(chunk, offset=chunk.offset + count, tokens=tokens, logprobs=logprobs, gaps=gaps)


def _relabel(entry: Entry, chunk: TokenChunk, now: float) -> TokenChunk:
    """The engine's chunk under the caller's request id; after a restart with times that span all lives."""
    stats = chunk.stats
    if stats is None and chunk.finish is None and chunk.sound is None:  # nearly every chunk: `replace` costs more
        return TokenChunk(
            request_id=entry.request.id,
            offset=chunk.offset,
            tokens=chunk.tokens,
            logprobs=chunk.logprobs,
            gaps=chunk.gaps,
        )
    if (stats is None and chunk.finish is not None) or (stats is not None and entry.restarts):
        whole = _stats(entry, now)
        stats = whole if stats is None else replace(
            whole,
            speech=stats.speech,
            cached_tokens=stats.cached_tokens,
            restored_tokens=stats.restored_tokens,
            proposed_tokens=stats.proposed_tokens,
            accepted_tokens=stats.accepted_tokens,
            queued_s=stats.queued_s,
            preemptions=stats.preemptions,
            device_s=stats.device_s,
            encoders=stats.encoders,
        )  # fmt: skip
    return replace(chunk, request_id=entry.request.id, stats=stats)


def _final(entry: Entry, finish: FinishReason, now: float) -> TokenChunk:
    return TokenChunk(
        request_id=entry.request.id,
        offset=len(entry.output),
        tokens=(),
        logprobs=None if entry.request.sampling.top_logprobs is None else (),
        finish=finish,
        stats=_stats(entry, now),
    )


def _stats(entry: Entry, now: float) -> RequestStats:
    """Facts as seen from the service: time to the first token counts as prefill, the rest as decode."""
    first = now if entry.first_token is None else entry.first_token
    return RequestStats(
        prompt_tokens=len(entry.request.prompt),
        cached_tokens=0,
        completion_tokens=len(entry.output),
        queued_s=0.0,
        prefill_s=first - entry.opened,
        decode_s=now - first,
        restarts=entry.restarts,
    )
