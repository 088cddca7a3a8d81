"""What the engine sees and hears with: encodes the media that prompts come to, in parts, and hands their rows to the network."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, replace
from typing import Final, Protocol, runtime_checkable

import torch

from edgewise.core.errors import EdgewiseError, EngineFault, InvalidRequest, QueueFull
from edgewise.core.sizes import mib
from edgewise.engine.chunking import MediaKey, MediaPlan, key_of
from edgewise.engine.encoder_cache import EncoderCache
from edgewise.engine.encoders.climbs import Improves
from edgewise.engine.request import GenerateRequest
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence
from edgewise.engine.tiers.pressure import PressureWatch
from edgewise.models.multimodal.media import RUNG, Media
from edgewise.models.multimodal.protocol import MediaEncoder, SlicedEncoder, Slices, StepMedia, finished

_RETRY_S: Final = 1.0
_FADE: Final = 0.9  # of the longest part so far, with every further one


class Unseen(Exception):
    """The encoder refuses a medium that a step needs.

    Attributes:
        key: The medium's.
        error: Why.
    """

    def __init__(self, key: MediaKey, error: EdgewiseError) -> None:
        super().__init__(error.message)
        self.key = key
        self.error = error


class Senses:
    """A model's encoder and the rows that it made.

    Attributes:
        cache: The rows.
        late: What `rows` had to encode again, for whom, and how long it took; whoever reads it clears it.
    """

    def __init__(
        self,
        encoder: MediaEncoder,
        cache: EncoderCache,
        device: torch.device,
        *,
        max_content: int,
        watch: PressureWatch | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            max_content: Bytes of samples that the requests in work may hold in all.
            watch: Shrinks the cache when memory is scarce; started already.
            now: Monotonic seconds.
        """
        self.cache = cache
        self._encoder = encoder
        self._device = device
        self._max_content = max_content
        self._watch = watch
        self._now = now
        self.late: list[tuple[Sequence, float]] = []
        self._begun: tuple[MediaKey, Slices] | None = None
        self._part_s = 0.0
        self._fresh: set[MediaKey] = set()  # encoded, and not come to yet

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

    @property
    def rung(self) -> str:
        """Which form of the encoder runs, as the ladder names it."""
        return rung_of(self._encoder, self._device)

    def improve(self, book: Callable[[int], Callable[[], None]]) -> None:
        """See `engine.encoders.climbs.Improves`."""
        if isinstance(self._encoder, Improves):
            self._encoder.improve(book)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if isinstance(self._encoder, _Changes):
            self._encoder.close()

    def bound(self, request: GenerateRequest) -> GenerateRequest:
        """The request with media that name the form of the encoder that serves now, where forms change while the engine lives.

        Their digests cover it, so neither rows nor KV pages of one form are ever taken for those of another.
        """
        if not isinstance(self._encoder, _Changes) or not request.media:
            return request
        key = self._encoder.serving
        media = tuple(
            replace(
                one,
                digest=hashlib.sha256(f"{RUNG} {key}\n".encode() + one.digest).digest(),
                options={**one.options, RUNG: key},
            )
            for one in request.media
        )
        return replace(request, media=media)

    # --- what the scheduler asks (`chunking.MediaRows`) --------------------------------------------------------------------

    def ready(self, key: MediaKey) -> bool:
        return self.cache.ready(key)

    def fits(self, medium: Media, keep: Collection[MediaKey]) -> bool:
        return self.cache.fits(medium, keep)

    @property
    def unfinished(self) -> MediaKey | None:
        return None if self._begun is None else self._begun[0]

    @property
    def part_s(self) -> float:
        return self._part_s

    # --- a step ------------------------------------------------------------------------------------------------------------

    def rows(self, work: Seq[Work]) -> StepMedia | None:
        """The rows of a step; None for a step without placeholders.

        Raises:
            Unseen: Rows were gone, and the encoder does not make them again.
        """
        places: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        first = 0
        for item in work:
            for medium in item.sequence.spans.within(item.start, item.start + item.count):
                rows = self._known(medium, item)
                begin, end = max(medium.start, item.start), min(medium.end, item.start + item.count)
                places.append(torch.arange(first + begin - item.start, first + end - item.start))
                values.append(rows[begin - medium.start : end - medium.start])
            first += item.count
        if not places:
            return None
        return StepMedia(rows=torch.cat(places).to(self._device), values=torch.cat(values))

    @torch.inference_mode()
    def advance(self, plan: MediaPlan) -> float:
        """Encode for as long as the plan allows, one part at least; returns the seconds that it took."""
        if plan.encode is None:
            return 0.0
        began = at = self._now()
        key, medium = plan.encode
        if self._begun is None or self._begun[0] != key:
            self._begun = key, self._slices(medium)
        rows = None
        while rows is None and (at == began or at - began + self._part_s <= plan.seconds):
            rows = self._part(self._begun[1])
            ended = self._now()
            self._part_s, at = max(ended - at, _FADE * self._part_s), ended
        if rows is not None:
            self._keep(key, medium, rows, plan)
        if plan.payer is not None:
            plan.payer.encoded_for(medium.kind, self.rung, at - began, whole=rows is not None)
        return at - began

    def release(self, live: Iterable[Sequence]) -> None:
        """Give up what none of these sequences needs any more: a part of a medium, with all that its encoder holds."""
        if self._begun is None and not self._fresh:
            return
        needed = {key_of(one, medium) for one in live for medium in one.spans.media}
        self._fresh &= needed
        if self._begun is not None and self._begun[0] not in needed:
            self._begun = None

    def _known(self, medium: Media, item: Work) -> torch.Tensor:
        key = key_of(item.sequence, medium)
        rows = self.cache.get(key)
        if rows is None:  # memory was scarce between the plan and now
            began = self._now()
            try:
                rows = finished(self._slices(medium))
                self._keep(key, medium, rows, MediaPlan())
            except EdgewiseError as error:
                raise Unseen(key, error) from error
            took = self._now() - began
            item.sequence.encoded_for(medium.kind, self.rung, took, whole=True)
            self.late.append((item.sequence, took))
        elif item.start <= medium.start and key not in self._fresh:
            self.cache.count_hit()
        self._fresh.discard(key)
        return rows

    def _slices(self, medium: Media) -> Slices:
        if isinstance(self._encoder, SlicedEncoder):
            return self._encoder.slices(medium)
        return self._whole(medium)

    def _whole(self, medium: Media) -> Slices:
        """An encoder that cannot be interrupted."""
        yield
        return self._encoder.encode([medium])[0]

    def _part(self, slices: Slices) -> torch.Tensor | None:
        """Compute a part; the rows if it was the last one."""
        try:
            next(slices)
        except StopIteration as end:
            rows: torch.Tensor = end.value
            return rows
        return None

    def _keep(self, key: MediaKey, medium: Media, rows: torch.Tensor, plan: MediaPlan) -> None:
        if rows.shape[0] != medium.count:
            raise EngineFault(
                f"The encoder made {rows.shape[0]} rows of a medium of kind '{medium.kind}' that stands for {medium.count}: "
                "prompt and model do not belong together."
            )
        self.cache.make_room(self.cache.size_of(medium), frozenset(plan.used), plan.keep)
        self.cache.put(key, rows)
        self._fresh.add(key)
        self._begun = None


@runtime_checkable
class _Changes(Protocol):
    @property
    def serving(self) -> str: ...

    def close(self) -> None: ...


@runtime_checkable
class _HasRung(Protocol):
    @property
    def rung(self) -> str: ...


def rung_of(encoder: MediaEncoder, device: torch.device) -> str:
    """The name that an encoder gives its form; one without a ladder is torch on its device."""
    return encoder.rung if isinstance(encoder, _HasRung) else f"torch-{device.type}"


def _content_bytes(request: GenerateRequest) -> int:
    return sum(len(one.content) for one in request.media)
