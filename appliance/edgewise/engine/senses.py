"""What the engine sees and hears with: encodes the media that a step comes to, and hands their rows to the network."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import Final

import torch

from edgewise.core.errors import EngineFault, InvalidRequest, QueueFull
from edgewise.core.sizes import mib
from edgewise.engine.chunking import MediaKey, MediaPlan, key_of
from edgewise.engine.encoder_cache import EncoderCache
from edgewise.engine.request import GenerateRequest
from edgewise.engine.scheduler import Work
from edgewise.engine.tiers.pressure import PressureWatch
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.protocol import MediaEncoder, StepMedia

_RETRY_S: Final = 1.0


class Senses:
    """A model's encoder and the rows that it made.

    Attributes:
        cache: The rows; the same that the scheduler asks.
    """

    def __init__(
        self,
        encoder: MediaEncoder,
        cache: EncoderCache,
        device: torch.device,
        *,
        max_content: int,
        watch: PressureWatch | None = None,
    ) -> None:
        """
        Args:
            max_content: Bytes of samples that the requests in work may hold in all.
            watch: Shrinks the cache when memory is scarce; started already.
        """
        self.cache = cache
        self._encoder = encoder
        self._device = device
        self._max_content = max_content
        self._watch = watch

    def check(self, request: GenerateRequest, others: Iterable[GenerateRequest]) -> None:
        """Refuse a request whose media are too large, for ever or for now.

        Raises:
            InvalidRequest: The rows of one medium, or its samples, never have room.
            QueueFull: `others` hold too many samples.
        """
        for index, one in enumerate(request.media):
            size = self.cache.size_of(one)
            if size > self.cache.limit:
                raise InvalidRequest(
                    f"The encoder's rows of medium {index} take {mib(size)}, and {mib(self.cache.limit)} are kept for them: "
                    "raise engine.encoder_cache_bytes or send a smaller one.",
                    param="media",
                )
        size = _content_bytes(request)
        if size > self._max_content:
            raise InvalidRequest(
                f"The media of the prompt have {mib(size)} of samples, and requests may hold {mib(self._max_content)} in all: "
                "send fewer or smaller ones, or raise engine.media_bytes.",
                param="media",
            )
        held = sum(_content_bytes(other) for other in others)
        if size + held > self._max_content:
            raise QueueFull(
                f"The media of requests in work have {mib(held)} of samples, {mib(size)} more would pass engine.media_bytes "
                f"({mib(self._max_content)}): try again later.",
                retry_after_s=_RETRY_S,
            )

    def stats(self) -> dict[str, int]:
        """Fields of `EngineStats`."""
        return {f"encoder_cache_{name}": count for name, count in asdict(self.cache.stats()).items()}

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    def rows(self, work: Seq[Work], plan: MediaPlan) -> StepMedia | None:
        """The rows of a step, encoded if need be; None for a step without placeholders."""
        fresh = None if plan.encode is None else self._encode(*plan.encode, plan)
        places: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        first = 0
        for item in work:
            for medium in item.sequence.spans.within(item.start, item.start + item.count):
                key = key_of(item.sequence, medium)
                rows = fresh if plan.encode is not None and key == plan.encode[0] else self._known(key, medium, item)
                assert rows is not None
                begin, end = max(medium.start, item.start), min(medium.end, item.start + item.count)
                places.append(torch.arange(first + begin - item.start, first + end - item.start))
                values.append(rows[begin - medium.start : end - medium.start])
            first += item.count
        if not places:
            return None
        return StepMedia(rows=torch.cat(places).to(self._device), values=torch.cat(values))

    def _known(self, key: MediaKey, medium: Media, item: Work) -> torch.Tensor:
        rows = self.cache.get(key)
        if rows is None:
            # Memory was scarce between the plan and now.
            rows = self._encode(key, medium, MediaPlan())
        elif item.start <= medium.start:
            self.cache.count_hit()
        return rows

    def _encode(self, key: MediaKey, medium: Media, plan: MediaPlan) -> torch.Tensor:
        self.cache.make_room(self.cache.size_of(medium), frozenset(plan.used), plan.keep)
        (rows,) = self._encoder.encode([medium])
        if rows.shape[0] != medium.count:
            raise EngineFault(
                f"The encoder made {rows.shape[0]} rows of a medium of kind '{medium.kind}' that stands for {medium.count}: "
                "prompt and model do not belong together."
            )
        self.cache.put(key, rows)
        return rows


def _content_bytes(request: GenerateRequest) -> int:
    return sum(len(one.content) for one in request.media)
