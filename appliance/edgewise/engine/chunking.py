"""How much of a prompt one step computes, where the prompt has media. Lists only, no tensors.

A medium's rows come from the model's encoder, which takes long, and must be there before the first of them is computed. One
medium is encoded at a time, in parts (`Pacer.encode_s`), beside the streams that are running; a step that streams wait for either
encodes or computes a prompt. Rows are kept (`engine.encoder_cache`) until others need their room. A medium whose rows see each
other must be computed in one step, however small the pacer's budget is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from edgewise.engine.sequence import Sequence
from edgewise.models.multimodal.media import Media

MediaKey = tuple[str, bytes]
"""The tenant's salt and the medium's digest: tenants share no rows, as they share no pages."""


def key_of(sequence: Sequence, medium: Media) -> MediaKey:
    return sequence.request.salt, medium.digest


class MediaRows(Protocol):
    """The rows of media, as the scheduler sees them."""

    def ready(self, key: MediaKey) -> bool:
        """Whether the rows are there."""

    def fits(self, medium: Media, keep: Collection[MediaKey]) -> bool:
        """Whether there is room for its rows while those of `keep` stay."""

    @property
    def unfinished(self) -> MediaKey | None:
        """What is encoded in part."""

    @property
    def part_s(self) -> float:
        """Seconds of a part of the encoder, as measured; 0 before that."""


class NoMedia:
    """Of an engine whose model takes none."""

    def ready(self, key: MediaKey) -> bool:
        del key
        return False

    def fits(self, medium: Media, keep: Collection[MediaKey]) -> bool:
        del medium, keep
        return False

    @property
    def unfinished(self) -> None:
        return None

    @property
    def part_s(self) -> float:
        return 0.0


@dataclass(slots=True)
class MediaPlan:
    """Media of one step.

    Attributes:
        encode: What the encoder works on, for `seconds`, on account of `payer`.
        used: Whose rows the step needs.
        keep: Whose rows are needed soon, and so stay if they can when something is encoded.
    """

    encode: tuple[MediaKey, Media] | None = None
    payer: Sequence | None = None
    seconds: float = 0.0
    used: set[MediaKey] = field(default_factory=set)
    keep: frozenset[MediaKey] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the pacer allows in one step.

    Attributes:
        budget: Tokens of prompts.
        idle: Whether nobody waits for a next token whom the prompts may not make wait.
        patient: Whether the step may be a slow one.
        encode_s: Seconds for the encoder.
    """

    budget: int = 0
    idle: bool = False
    patient: bool = False
    encode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a prompt that a step computes. `wait`: none, and nobody behind it gets any, so that its turn comes."""

    count: int
    wait: bool = False


class Chunks:
    """Cuts prompts into chunks.

    Args:
        rows: What is encoded already.
        most: Tokens of a step.
    """

    def __init__(self, rows: MediaRows, most: int) -> None:
        self._rows = rows
        self._most = most

    def next(
        self, sequence: Sequence, budget: int, pace: Pace, plan: MediaPlan, running: Iterable[Sequence], *, first: bool
    ) -> Chunk:
        """What is computed next of a sequence; what it takes is added to `plan`.

        Args:
            sequence: With a prompt that is not computed yet.
            budget: What is left of the pace's.
            pace: Of the step.
            plan: Of the step so far.
            running: Everybody in the batch.
            first: Whether the step has no other prompt yet.
        """
        start, spans = sequence.computed, sequence.spans
        end = start + min(sequence.remaining, budget)
        if start >= spans.end:
            return Chunk(end - start)
        end = spans.fitting(start, end, self._most if first and pace.patient else budget)
        if end == start:
            return Chunk(0, wait=True)
        for medium in spans.within(start, end):
            key, before = key_of(sequence, medium), max(0, medium.start - start)
            if self._rows.ready(key):
                if plan.encode is not None and not self._rows.fits(plan.encode[1], {*plan.used, key}):
                    return Chunk(before)
                plan.used.add(key)
                continue
            if pace.idle or (first and before == 0):
                self._encode(sequence, medium, pace, plan, list(running), first=first)
            return Chunk(before, wait=before == 0 and not pace.idle)
        return Chunk(end - start)

    def _encode(
        self, payer: Sequence, medium: Media, pace: Pace, plan: MediaPlan, running: Seq[Sequence], *, first: bool
    ) -> None:
        """Have this medium encoded in this step, or another one that is encoded in part and still needed."""
        if plan.encode is not None or pace.encode_s <= 0.0:
            return
        begun = self._rows.unfinished
        for other in running:
            for one in other.spans.media:
                if key_of(other, one) == begun and one.end > other.computed:
                    payer, medium = other, one
        keep = plan.used if first else plan.used | self._needed_soon(running)
        if self._rows.fits(medium, keep):
            plan.encode, plan.payer = (key_of(payer, medium), medium), payer
            plan.seconds, plan.keep = pace.encode_s, frozenset(keep)

    def _needed_soon(self, running: Iterable[Sequence]) -> set[MediaKey]:
        """Rows that are there and that running prompts come to next."""
        found = set()
        for sequence in running:
            medium = next((one for one in sequence.spans.media if one.end > sequence.computed), None)
            if medium is not None and self._rows.ready(key_of(sequence, medium)):
                found.add(key_of(sequence, medium))
        return found
