"""Guesses by a smaller model of the same vocabulary (Leviathan et al. 2023; Chen et al. 2023): it writes ahead, the model checks.

The draft model draws with the request's own controls and uniform numbers. So where both models think alike, they draw alike,
at any temperature. It has pages of its own, and forgets whom it has no room for; what it computes is never shown to anybody.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from edgewise.engine.pages import PagePool
from edgewise.engine.runner import Runner
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence
from edgewise.engine.speculation.reading import LEAST, Reading


@dataclass(slots=True)
class _Mirror:
    """A sequence as the draft model has it: `known` of its tokens are the sequence's, those behind them were drafted."""

    own: Sequence
    known: int = 0


class DraftModel:
    """A network that writes ahead.

    Args:
        runner: Of the draft model.
        pages: Its pool; the draft model is its only user.
        max_position: Tokens that the draft model's context has room for, which may be fewer than the model's.
        page_tokens: Tokens per page.
        chunk: Tokens that are read in one step at most before it can guess.
        now: Seconds.
    """

    def __init__(
        self,
        runner: Runner,
        pages: PagePool,
        *,
        max_position: int,
        page_tokens: int,
        chunk: int,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner = runner
        self._pages = pages
        self._max_position = max_position
        self._page_tokens = page_tokens
        self._reading = Reading(chunk)
        self._now = now
        self._mirrors: OrderedDict[str, _Mirror] = OrderedDict()

    def __repr__(self) -> str:
        return f"DraftModel({len(self._mirrors)} sequences, {self._pages!r})"

    def guess(self, sequences: Seq[Sequence], counts: Seq[int], spare_s: float = math.inf) -> list[tuple[int, ...]]:
        """Draft `counts` tokens behind each sequence; none for one that is still being read, has media, or finds no room, and
        only as many as the draft model's context holds.

        Args:
            spare_s: Seconds that reading may add to this step. What is too little to read anything is saved for later ones.
        """
        counts = [self._within(sequence, count) for sequence, count in zip(sequences, counts, strict=True)]
        drafted: list[tuple[int, ...]] = [()] * len(sequences)
        mirrors: dict[int, _Mirror] = {}
        turn_of = {sequence.id for sequence in sequences}
        left = self._reading.tokens(spare_s)
        for place, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            mirror = self._follow(sequence, count, turn_of) if count else None
            if mirror is None:
                continue
            left = self._read(mirror.own, left)
            if mirror.own.remaining == 1:
                mirrors[place] = mirror
        for depth in range(max(counts, default=0)):
            turn = {place: mirror.own for place, mirror in mirrors.items() if depth < counts[place]}
            if not turn:
                break
            draws = self._runner.run([Work(one, one.computed, 1, sample=True) for one in turn.values()])
            for (place, own), (draw,) in zip(turn.items(), draws, strict=True):
                own.computed += 1
                if draw.token < 0:
                    del mirrors[place]
                    continue
                own.tokens.append(draw.token)
                drafted[place] = (*drafted[place], draw.token)
        return drafted

    def forget(self, request_id: str) -> None:
        """Free what an answer held that has ended; unknown ids held nothing."""
        mirror = self._mirrors.pop(request_id, None)
        if mirror is not None:
            self._pages.release(mirror.own.pages)

    # --- parts -----------------------------------------------------------------------------------------------------------

    def _within(self, sequence: Sequence, count: int) -> int:
        """Of `count` tokens those that fit behind the sequence; one that has outgrown the context holds nothing from then on."""
        room = self._max_position - len(sequence.tokens)
        if room <= 0:
            self.forget(sequence.id)
        return max(0, min(count, room))

    def _follow(self, sequence: Sequence, count: int, keep: Collection[str]) -> _Mirror | None:
        """The mirror with the sequence's tokens of now and pages for `count` more; None without room. Those in `keep` give
        up nothing."""
        if sequence.spans.media:
            return None
        mirror = self._mirrors.get(sequence.id)
        if mirror is None:
            mirror = self._mirrors[sequence.id] = _Mirror(_mirror_of(sequence))
        own = mirror.own
        # What is new was drafted, as far as it is the same; keys and values of the rest are written again.
        fresh = sequence.tokens[mirror.known :]
        right = next(
            (i for i, (a, b) in enumerate(zip(own.tokens[mirror.known :], fresh, strict=False)) if a != b), None
        )
        same = mirror.known + (min(len(own.tokens) - mirror.known, len(fresh)) if right is None else right)
        own.tokens[mirror.known :] = fresh
        own.computed = min(own.computed, same, len(own.tokens) - 1)
        mirror.known = len(own.tokens)
        self._mirrors.move_to_end(sequence.id)
        return mirror if self._room(own, len(own.tokens) + count, keep) else None

    def _room(self, own: Sequence, tokens: int, keep: Collection[str]) -> bool:
        missing = -(-tokens // self._page_tokens) - len(own.pages)
        for oldest in [name for name in self._mirrors if name not in keep]:
            if missing <= self._pages.available:
                break
            self.forget(oldest)
        pages = self._pages.allocate(max(0, missing))
        if pages is None:
            self.forget(own.id)
            return False
        own.pages += pages
        return True

    def _read(self, own: Sequence, left: int) -> int:
        """Compute what the draft model has not read, but for the last token; returns what is left of the step's share.

        The few tokens that an answer has grown by are no part of that: guesses follow at once, and are measured with them.
        """
        behind = own.remaining - 1
        few = behind <= LEAST
        count = behind if few else min(left, behind)
        if count <= 0 or (not few and count < LEAST):
            return left
        began = self._now()
        self._runner.run([Work(own, own.computed, count, sample=False)])
        own.computed += count
        if few:
            return left
        self._reading.done(count, self._now() - began)
        return left - count


def _mirror_of(sequence: Sequence) -> Sequence:
    """Draws as its request does, but for what only the model itself does: grammars, log probabilities, adapters."""
    request = sequence.request
    plain = replace(
        request,
        sampling=replace(request.sampling, top_logprobs=None),
        constraint=None,
        output=(),
        adapter=None,
        speech=None,
    )
    mirror = Sequence.of(plain, arrival=sequence.arrival, now=0.0)
    mirror.tokens = []
    return mirror
