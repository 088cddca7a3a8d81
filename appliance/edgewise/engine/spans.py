"""The media of one sequence: where they lie, which of its tokens may be computed together, who sees whom. No tensors of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgewise.core.errors import ContextLengthExceeded, InvalidRequest
from edgewise.engine.request import GenerateRequest
from edgewise.models.multimodal.media import Media, MediaKind
from edgewise.models.multimodal.mrope import Positions, rope_positions

DIGEST_BYTES = 32
_SAMPLE_BYTES = {"image": 1, "video": 1, "audio": 4}


class Spans:
    """
    Attributes:
        media: In order.
        end: After the last placeholder.
        three: Whether positions are numbered in three dimensions.
        some_whole: Whether a medium's placeholders see each other in both directions.
        next_position: Of the first token of the answer.
    """

    def __init__(self, media: Sequence[Media], length: int) -> None:
        """`length`: tokens of the prompt."""
        self.media = tuple(media)
        self.end = max((one.end for one in media), default=0)
        self.three = any(one.grid is not None for one in media)
        self.some_whole = any(one.whole for one in media)
        self._length = length
        self._positions = rope_positions(length, media) if self.three else None
        self.next_position = length if self._positions is None else int(self._positions.max()) + 1

    def __repr__(self) -> str:
        return f"Spans({len(self.media)} media up to {self.end})"

    def within(self, start: int, end: int) -> list[Media]:
        """The media that have placeholders in [start, end)."""
        return [one for one in self.media if one.start < end and one.end > start]

    def fitting(self, start: int, end: int, most: int) -> int:
        """Where a chunk from `start` on ends that was to end at `end`, so that no medium that must be whole is cut.

        Before such a medium if the chunk has begun before it; else after it, if that makes no more than `most` tokens. `start`
        itself if it does.
        """
        cut = next((one for one in self.media if one.whole and one.start < end < one.end), None)
        if cut is None:
            return end
        if cut.start > start:
            return cut.start
        return cut.end if cut.end - start <= most else start

    def visible(self, start: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The last position that each of the tokens [start, start + count) sees (`AttentionMeta.visible`)."""
        seen = np.arange(start, start + count, dtype=np.int64)
        for one in self.within(start, start + count):
            if one.whole:
                seen[max(0, one.start - start) : one.end - start] = one.end - 1
        return seen

    def rope(self, start: int, count: int) -> Positions:
        """[3, count] (`AttentionMeta.rope_positions`) of tokens of the prompt or the answer."""
        if self._positions is None:
            return np.tile(np.arange(start, start + count, dtype=np.int64), (3, 1))
        inside = self._positions[:, start : start + count]
        first = max(start, self._length)
        later = np.arange(first, start + count, dtype=np.int64) - self._length + self.next_position
        return np.concatenate([inside, np.tile(later, (3, 1))], axis=1)


NO_SPANS = Spans((), 0)


def check_media(
    request: GenerateRequest, *, kinds: Sequence[MediaKind], model: str, most_whole: int, max_position: int
) -> None:
    """Refuse a request whose media this model does not take, or that contradict themselves.

    Args:
        request: Any.
        kinds: Those that the model takes.
        model: Its name, for messages.
        most_whole: Most tokens that are computed in one step.
        max_position: Positions that the model was made for.

    Raises:
        InvalidRequest: Names the medium by its place.
        ContextLengthExceeded: Positions in three dimensions run beyond the model's.
    """
    before = 0
    for index, one in enumerate(request.media):
        if one.kind not in kinds:
            taken = f"takes {' and '.join(kinds)}" if kinds else "takes text alone"
            raise InvalidRequest(f"The model {model} {taken}: medium {index} is of kind '{one.kind}'.", param="media")
        for rule, held in _rules(one, before, len(request.prompt)):
            if not held:
                raise InvalidRequest(f"Medium {index} of the prompt {rule}.", param="media")
        if one.whole and one.count > most_whole:
            raise InvalidRequest(
                f"Medium {index} takes {one.count} tokens, which this model computes in one step, and a step has {most_whole} "
                "at most: raise engine.max_step_tokens or send a smaller one.",
                param="media",
            )
        before = one.end
    last = Spans(request.media, len(request.prompt)).next_position + request.sampling.max_tokens
    if request.media and last > max_position:
        raise ContextLengthExceeded(
            f"The prompt's pictures and film and the answer reach position {last}: the model's limit is {max_position}. "
            "Send a shorter film or lower max_tokens.",
            param="max_tokens",
        )


def _rules(one: Media, before: int, length: int) -> list[tuple[str, bool]]:
    size = math.prod(one.shape) * _SAMPLE_BYTES[one.kind]
    return [
        ("lies outside the prompt, or over another", before <= one.start and one.end <= length and one.count >= 1),
        (f"has a digest of {len(one.digest)} bytes, {DIGEST_BYTES} are expected", len(one.digest) == DIGEST_BYTES),
        (f"has {len(one.content)} bytes of content, its shape says {size}", len(one.content) == size),
        ("has a grid of another size", one.grid is None or math.prod(one.grid) == one.count),
        ("has negative seconds", one.second >= 0),
    ]
