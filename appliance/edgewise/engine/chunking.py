"""How much of a prompt one step computes, where the prompt has media. Lists only, no tensors.

A medium's rows come from the model's encoder, which takes long: one medium is encoded in a step, right before the first of its
rows is computed, and its rows are kept (`engine.encoder_cache`) until they are not needed any more. Running streams wait for it,
so it counts as a slow step, of which the pacer allows few (`Pacer.patient`). A medium whose rows see each other must be computed
in one step, however small the pacer's budget is; that is a slow step too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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


class NoMedia:
    """Of an engine whose model takes none."""

    def ready(self, key: MediaKey) -> bool:
        del key
        return False

    def fits(self, medium: Media, keep: Collection[MediaKey]) -> bool:
        del medium, keep
        return False


@dataclass(slots=True)
class MediaPlan:
    """Media of one step.

    Attributes:
        encode: What is encoded before it.
        used: Whose rows it needs.
        keep: Whose rows are needed soon, and so stay if they can while something is encoded.
    """

    encode: tuple[MediaKey, Media] | None = None
    used: set[MediaKey] = field(default_factory=set)
    keep: frozenset[MediaKey] = frozenset()


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
        self,
        sequence: Sequence,
        budget: int,
        plan: MediaPlan,
        running: Iterable[Sequence],
        *,
        first: bool,
        patient: bool,
    ) -> Chunk:
        """What is computed next of a sequence; what it takes is added to `plan`.

        Args:
            sequence: With a prompt that is not computed yet.
            budget: Tokens that the pacer allows.
            plan: Of the step so far.
            running: Everybody in the batch.
            first: Whether the step has no other prompt yet.
            patient: Whether the step may be a slow one.
        """
        start, spans = sequence.computed, sequence.spans
        end = start + min(sequence.remaining, budget)
        if start >= spans.end:
            return Chunk(end - start)
        end = spans.fitting(start, end, self._most if first and patient else budget)
        if end == start:
            return Chunk(0, wait=True)
        for medium in spans.within(start, end):
            if not self._reaches(sequence, medium, plan, running, first=first, patient=patient):
                count = max(0, medium.start - start)
                return Chunk(count, wait=count == 0 and not patient)
            plan.used.add(key_of(sequence, medium))
        return Chunk(end - start)

    def _reaches(
        self,
        sequence: Sequence,
        medium: Media,
        plan: MediaPlan,
        running: Iterable[Sequence],
        *,
        first: bool,
        patient: bool,
    ) -> bool:
        """Whether this step can have a medium's rows, beside those that it has already."""
        key = key_of(sequence, medium)
        if plan.encode is not None:
            fresh, fresh_medium = plan.encode
            return key == fresh or (
                self._rows.ready(key) and self._rows.fits(fresh_medium, {*plan.used, key} - {fresh})
            )
        if self._rows.ready(key):
            return True
        keep = plan.used if first else plan.used | self._needed_soon(running)
        if not patient or not self._rows.fits(medium, keep):
            return False
        plan.encode, plan.keep = (key, medium), frozenset(keep)
        return True

    def _needed_soon(self, running: Iterable[Sequence]) -> set[MediaKey]:
        """Rows that are there and that running prompts come to next."""
        found = set()
        for sequence in running:
            medium = next((one for one in sequence.spans.media if one.end > sequence.computed), None)
            if medium is not None and self._rows.ready(key_of(sequence, medium)):
                found.add(key_of(sequence, medium))
        return found
