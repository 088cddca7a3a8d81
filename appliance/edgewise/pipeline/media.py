"""Media of a conversation: fetched, decoded and fitted for a model with eyes, or put into words for one without.

Comes before hooks and templates, so that those see what the model will see.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from edgewise.core.errors import DeadlineExceeded, InvalidRequest, UnsupportedField
from edgewise.core.files import translate_os_errors
from edgewise.core.patience import within
from edgewise.core.privacy import Labels
from edgewise.core.sizes import mib
from edgewise.models.files import ModelFiles
from edgewise.models.media.fitting import (
    FilmPictures,
    FilmWish,
    film_needs,
    film_pictures,
    fit_film,
    fit_picture,
    picture_needs,
)
from edgewise.models.media.process import MediaProcess
from edgewise.models.media.rates import RATE
from edgewise.models.media.sound_limits import MAX_SECONDS
from edgewise.models.media.source import read_source
from edgewise.models.multimodal.layout import Fitted, Layout, ScanLayout, SoundLayout
from edgewise.pipeline.attachments import Attachment
from edgewise.pipeline.batches.files import Files
from edgewise.pipeline.held import HeldBytes, Hold
from edgewise.pipeline.listen import decoded, ears, heard_receipt, nobody_listens, write_down
from edgewise.pipeline.listener import ServedListener
from edgewise.pipeline.look import FRAMES, Shown, describe_all, lookers
from edgewise.pipeline.model import Models, ServedEncoder
from edgewise.pipeline.pressure import Pressure
from edgewise.pipeline.receipts import MediumReceipt
from edgewise.pipeline.task import ChatInput, Task
from edgewise.security.fetch import FetchPolicy

MOST: Final = 32
"""Media in one request."""
LOW_DETAIL_PIXELS: Final = 512 * 512
"""What is seen of a picture with detail "low"."""
_ASKED: Final = ("max_image_pixels", "detail")
"""Bounds of pixels that callers set."""
_FETCHED_TOGETHER: Final = 4
_LEAST_S: Final = 0.001
"""Of a deadline that has just passed: engines take none that is not positive."""


@dataclass(frozen=True, kw_only=True)
class MediaDesk:
    """Attributes:
    models: Where models that look at pictures are found.
    files: Those that callers have uploaded.
    fetch: What may be fetched for URLs; None fetches nothing.
    max_bytes: Of what a URL leads to.
    look: Whether pictures are put into words for a model without eyes.
    max_pixels: That a model sees of a picture at most; None leaves it to the model.
    pan_and_scan: Whether pictures are shown in parts as well, of models that leave that open; None leaves it to the model.
    film_tokens: That a film may take of a prompt.
    look_frames: Pictures of a film that are looked at, at most, for a model without eyes.
    max_seconds: Of one recording.
    labels: Of models: those of the models that hear or look hold for their words too.
    pressure: How pressed the device is: what a caller left open steps down.
    process: Where media are decoded.
    held: The ledger of what requests hold of them.
    """

    models: Models
    files: Files
    fetch: FetchPolicy | None
    max_bytes: int
    look: bool = True
    max_pixels: int | None = None
    pan_and_scan: bool | None = None
    film_tokens: int = 2048
    look_frames: int = FRAMES
    max_seconds: float = MAX_SECONDS
    labels: Labels = field(default_factory=Labels)
    pressure: Pressure = field(default_factory=Pressure)
    process: MediaProcess = field(default_factory=MediaProcess)
    held: HeldBytes = field(default_factory=HeldBytes)
    _readers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_FETCHED_TOGETHER, "fetch"))

    async def gather(self, task: Task, hold: Hold | None = None) -> Task:
        """The same task with its media where the model can see them, and what is left of its deadline.

        What they take decoded is booked in `hold`, whose owner closes it when the request ends; without one it is given back at
        once. Cancelling it (the caller has left) ends what is decoded or computed for it; what is being fetched arrives unread.

        Raises:
            InvalidRequest: A medium that cannot be had, is damaged or beyond a limit, or nobody here who could look at it.
            PayloadTooLarge, OutOfMemory: There is no room for them; see `Hold.add`.
            QueueFull, EngineUnavailable, OutOfMemory, DeadlineExceeded: As of every engine.
        """
        given = task.input
        if not isinstance(given, ChatInput) or not given.attachments:
            return task
        if hold is None:
            with self.held.hold() as own:
                return await self.gather(task, own)
        if task.deadline_s is None:
            return await self._gathered(task, given, hold)
        ends = time.monotonic() + task.deadline_s
        gathered = await within(self._gathered(task, given, hold), task.deadline_s, partial(_late, task.deadline_s))
        return replace(gathered, deadline_s=max(ends - time.monotonic(), _LEAST_S))

    async def _gathered(self, task: Task, given: ChatInput, hold: Hold) -> Task:
        count = sum(max(1, len(one.urls)) for one in given.attachments)
        if count > MOST:
            raise InvalidRequest(
                f"This request has {count} pictures and films: at most {MOST} are taken. Send fewer.",
                param=given.attachments[-1].param,
            )
        layout = task.model.layout
        if any(one.kind == "audio" for one in given.attachments) and not isinstance(layout, SoundLayout):
            task, given = await self._written_down(task, given)
            if not given.attachments:
                return task
        if layout is None:
            return await self._described(task, given)
        return await self._fitted(task, given, layout, hold)

    async def _written_down(self, task: Task, given: ChatInput) -> tuple[Task, ChatInput]:
        """For a model without ears: words in place of its recordings; what else hangs on the messages stays."""
        recordings = [one for one in given.attachments if one.kind == "audio"]
        found = await ears(self.models)
        if found is None:
            raise nobody_listens(task.model.name, recordings[0])
        task = self._tightened(task, (found.listener, found.detector))
        said = []
        for index, one in enumerate(recordings):  # one after the other: an hour of sound is 220 MiB
            with self.held.hold() as hold:
                said.append(await write_down(task, found, index, one, *await self._samples(task, one, hold)))
        texts = iter([one.text for one in said])
        given = replace(
            given,
            messages=tuple(_said(message, texts) for message in given.messages),
            attachments=tuple(one for one in given.attachments if one.kind != "audio"),
        )
        heard = f"'{found.listener.name}' heard for it, and it was told what is said."
        warning = f"The model '{task.model.name}' has no ears: {heard}"
        task = replace(
            task,
            input=given,
            looks=(*task.looks, *(one.look for one in said)),
            media=(*task.media, *(one.medium for one in said)),
            warnings=(*task.warnings, warning, *(note for one in said for note in one.warnings)),
        )
        return task, given

    def _tightened(self, task: Task, helpers: Iterable[ServedListener | ServedEncoder | None]) -> Task:
        """The task with the strictest label of its own and of the models whose words become its prompt."""
        label = self.labels.model(name for one in helpers if one is not None for name in one.names)
        return task if label is None else replace(task, privacy=min(task.privacy, label))

    async def _samples(self, task: Task, attachment: Attachment, hold: Hold) -> tuple[bytes, tuple[str, ...]]:
        (data,) = await self._read(task, attachment)
        return await decoded(
            self.process, hold, data, attachment.param, max_bytes=self.max_bytes, max_seconds=self.max_seconds
        )

    async def _fitted(self, task: Task, given: ChatInput, layout: Layout, hold: Hold) -> Task:
        """For a model with eyes."""
        for one in given.attachments:
            if one.kind == "image" and "image" not in layout.markers:
                raise InvalidRequest(
                    f"'{one.param}': the model '{task.model.name}' takes no pictures.", param=one.param
                )
        if task.pan_and_scan and not isinstance(layout, ScanLayout):
            raise UnsupportedField(
                f"'pan_and_scan': how '{task.model.name}' divides pictures is not left open; that of Gemma 3 is.",
                param="pan_and_scan",
            )
        shown = []
        for one in given.attachments:
            shown.append(await self._show(task, one, layout, hold))
            hold.add(sum(len(part.content) for fitted in shown[-1].fitted for part in fitted.media), one.param)
        parts = iter([one.parts for one in shown])
        messages = tuple(_replaced(message, parts) for message in given.messages)
        media = tuple(fitted for one in shown for fitted in one.fitted)
        return replace(
            task,
            input=replace(given, messages=messages, attachments=(), media=media),
            media=(*task.media, *(one.receipt for one in shown)),
            warnings=(*task.warnings, *dict.fromkeys(one.lowered for one in shown if one.lowered)),
        )

    async def _show(self, task: Task, attachment: Attachment, layout: Layout, hold: Hold) -> _Shown:
        """Room for its decoding is booked in `hold` meanwhile."""
        if attachment.kind == "audio":
            return await self._sound(task, attachment, layout)
        files = task.model.files
        assert files is not None
        data = await self._read(task, attachment)
        if attachment.kind == "image":
            return await self._picture(task, files, attachment, data[0], hold)
        return await self._film(task, files, attachment, data, hold, takes_film="video" in layout.markers)

    async def _picture(self, task: Task, files: ModelFiles, attachment: Attachment, data: bytes, hold: Hold) -> _Shown:
        most, bounded_by = self._bound(task, attachment)
        left_open = bounded_by not in _ASKED and attachment.detail != "high"
        share = self.pressure.quality.pixels if left_open else 1.0
        scan = self.pan_and_scan if task.pan_and_scan is None else task.pan_and_scan
        param = attachment.param
        needs = await self.process.turn(lambda: picture_needs(self.process, files, data, param, pan_and_scan=scan))
        found = await hold.decoding(
            self.process,
            needs,
            param,
            lambda: fit_picture(self.process, files, data, param, max_pixels=most, share=share, pan_and_scan=scan),
        )
        seen, usual = math.prod(found.fitted.size), found.usual_pixels
        receipt = _receipt(attachment, (found.fitted,), found.came, bounded_by)
        lowered = self.pressure.lowered("pixels of a picture", usual, seen) if seen < usual else ""
        return _Shown([_IMAGE], (found.fitted,), receipt, lowered)

    async def _film(
        self,
        task: Task,
        files: ModelFiles,
        attachment: Attachment,
        data: Sequence[bytes],
        hold: Hold,
        *,
        takes_film: bool,
    ) -> _Shown:
        most, bounded_by = self._bound(task, attachment)
        left_open = attachment.fps is None and attachment.frames is None
        wish = FilmWish(
            fps=attachment.fps,
            frames=attachment.frames,
            max_tokens=self.film_tokens,
            max_pixels=most,
            share=self.pressure.quality.frames if left_open else 1.0,
        )
        param = attachment.param
        needs = await self.process.turn(lambda: film_needs(self.process, data, param, wish.max_tokens))
        found = await hold.decoding(
            self.process, needs, param, lambda: fit_film(self.process, files, data, param, wish)
        )
        receipt = _receipt(attachment, found.parts, found.came, bounded_by)
        receipt = replace(receipt, frames=found.frames, every_s=round(found.every_s, 3))
        usual, seen = found.usual_frames, found.frames
        lowered = self.pressure.lowered("frames of film", usual, seen) if seen < usual else ""
        return _Shown([_VIDEO] if takes_film else _stills(seen, found.every_s), found.parts, receipt, lowered)

    async def _sound(self, task: Task, attachment: Attachment, layout: Layout) -> _Shown:
        assert isinstance(layout, SoundLayout)
        with self.held.hold() as hold:
            data, _ = await self._samples(task, attachment, hold)
            samples = np.frombuffer(data, dtype="<f4")
            fitted = await asyncio.to_thread(layout.sound, samples, attachment.param)
        count = sum(medium.count for medium in fitted.media)
        return _Shown([_AUDIO], (fitted,), heard_receipt(attachment.param, samples.shape[0] / RATE, count))

    def _bound(self, task: Task, attachment: Attachment) -> tuple[int | None, str | None]:
        """Pixels that may be seen of a medium, and who says so: the least of the request's, the detail's and the setting's."""
        bounds = [
            (task.max_image_pixels, "max_image_pixels"),
            (LOW_DETAIL_PIXELS if attachment.detail == "low" else None, "detail"),
            (self.max_pixels, "vision.max_pixels"),
        ]
        return min(((most, name) for most, name in bounds if most is not None), default=(None, None))

    async def _described(self, task: Task, given: ChatInput) -> Task:
        """For a model without eyes."""
        found = await lookers(self.models) if self.look else []
        if not found:
            raise await self._nobody_looks(task, given.attachments[0])
        task = self._tightened(task, found)
        with self.held.hold() as hold:
            shown: list[tuple[Attachment, Shown]] = []
            lowered = []
            for one in given.attachments:
                data = await self._read(task, one)
                if one.kind == "video":
                    film = await self._film_pictures(one, data, hold)
                    usual, seen = film.usual_frames, len(film.pictures)
                    lowered += [self.pressure.lowered("frames of film", usual, seen)] if seen < usual else []
                    shown.append((one, film))
                else:
                    hold.add(len(data[0]), one.param)  # decoded by engines, one at a time, in memory of their own
                    shown.append((one, data[0]))
            described = await describe_all(task, found, shown)
        texts = iter([one.text for one in described])
        names = " and ".join(f"'{one.name}'" for one in found)
        told = _counted([one.medium for one in described])
        warnings = [
            f"The model '{task.model.name}' has no eyes: {names} looked at {told}, and it was told what they saw."
        ]
        warnings += [*lowered, *(f"'{one.medium.of}' has more text than is told." for one in described if one.cut)]
        return replace(
            task,
            input=replace(given, messages=tuple(_told(message, texts) for message in given.messages), attachments=()),
            looks=(*task.looks, *(look for one in described for look in one.looks)),
            media=(*task.media, *(one.medium for one in described)),
            warnings=(*task.warnings, *dict.fromkeys(warnings)),
        )

    async def _film_pictures(self, attachment: Attachment, data: Sequence[bytes], hold: Hold) -> FilmPictures:
        """Pictures of a film for models that look at one at a time; they are booked in `hold`."""
        param, fps, frames = attachment.param, attachment.fps, attachment.frames
        share = self.pressure.quality.frames if fps is None and frames is None else 1.0
        film = await hold.decoding(
            self.process,
            await self.process.turn(lambda: film_needs(self.process, data, param, 0)),
            param,
            lambda: film_pictures(
                self.process, data, param, fps=fps, frames=frames, most=self.look_frames, share=share
            ),
        )
        hold.add(sum(map(len, film.pictures)), param)
        return film

    async def _read(self, task: Task, attachment: Attachment) -> list[bytes]:
        """The bytes behind each of its URLs, or of its file. Raises `NotFound`: there is no such file of this caller."""
        if attachment.file is not None:
            stored = await self.files.get(task.salt, attachment.file, param=attachment.param)
            if attachment.kind == "audio" and stored.bytes > self.max_bytes:
                raise InvalidRequest(
                    f"'{attachment.param}' has {mib(stored.bytes)}: at most {mib(self.max_bytes)} of a recording are taken.",
                    param=attachment.param,
                )
            path = self.files.path(stored.id)
            with translate_os_errors("read", path):
                return [await asyncio.to_thread(path.read_bytes)]
        return [await self.read_url(url, attachment.param) for url in attachment.urls]

    async def read_url(self, url: str, param: str) -> bytes:
        """The bytes behind a URL. Raises as `read_source`.

        On threads of its own: slow servers, also those whose caller has left, take none of the loop's.
        """
        read = partial(read_source, url, param, max_bytes=self.max_bytes, policy=self.fetch)
        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    async def _nobody_looks(self, task: Task, attachment: Attachment) -> InvalidRequest:
        what = "a film" if attachment.kind == "video" else "a picture"
        cards = await self.models.cards()
        seeing = [card.name for card in cards if attachment.kind in card.media or "image" in card.media]
        remedies = []
        if seeing:
            remedies.append(f"ask a model that has ({', '.join(seeing)})")
        if self.look:
            remedies.append(
                "have models look for it (`edgewise models pull rapidocr` for text, `edgewise models pull "
                "efficientnet-lite0` for things)"
            )
        else:
            remedies.append("switch `vision.look` on")
        remedies.append("install a vision language model")
        return InvalidRequest(
            f"'{attachment.param}' is {what}, and the model '{task.model.name}' has no eyes: {', or '.join(remedies)}.",
            param=attachment.param,
        )


def _late(deadline_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"The request's deadline of {deadline_s:g} s has passed before its media were read: send fewer or smaller ones, or give "
        "it more time."
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    """Attributes:
    parts: What stands for a medium in its message.
    fitted: One for each of them that is no text.
    lowered: A sentence for the receipt where the device is pressed, and less is seen for it.
    """

    parts: Sequence[Mapping[str, Any]]
    fitted: tuple[Fitted, ...]
    receipt: MediumReceipt
    lowered: str = ""


_IMAGE: Final[Mapping[str, Any]] = {"type": "image"}
_VIDEO: Final[Mapping[str, Any]] = {"type": "video"}
_AUDIO: Final[Mapping[str, Any]] = {"type": "audio"}


def _receipt(
    attachment: Attachment, fitted: Sequence[Fitted], came: tuple[int, int], bounded_by: str | None
) -> MediumReceipt:
    """Of a picture."""
    return MediumReceipt(
        of=attachment.param,
        kind=attachment.kind,
        width=came[0],
        height=came[1],
        seen_width=fitted[0].size[0],
        seen_height=fitted[0].size[1],
        frames=1,
        every_s=None,
        tokens=sum(medium.count for one in fitted for medium in one.media),
        bounded_by=bounded_by,
    )


def _counted(media: Sequence[MediumReceipt]) -> str:
    """What was looked at, in words."""
    pictures = sum(one.kind == "image" for one in media)
    told = [] if not pictures else ["a picture" if pictures == 1 else f"{pictures} pictures"]
    told += [f"{one.frames} frames of '{one.of}'" for one in media if one.kind == "video"]
    return " and ".join(told)


def _stills(count: int, every_s: float) -> list[Mapping[str, Any]]:
    """A film as pictures with their times, for models that take no film."""
    parts: list[Mapping[str, Any]] = []
    for index in range(count):
        parts += [{"type": "text", "text": f"{index * every_s:.1f} s:"}, _IMAGE]
    return parts


def _replaced(message: Mapping[str, Any], parts: Iterator[Sequence[Mapping[str, Any]]]) -> Mapping[str, Any]:
    """A message with what stands for each medium in its place."""
    content = message["content"]
    if isinstance(content, str):
        return message
    return {
        **message,
        "content": [one for part in content for one in ([part] if part["type"] == "text" else next(parts))],
    }


def _said(message: Mapping[str, Any], texts: Iterator[str]) -> Mapping[str, Any]:
    """A message with what is said in each recording in its place; plain text where nothing else hangs on it."""
    content = message["content"]
    if isinstance(content, str):
        return message
    parts = [{"type": "text", "text": next(texts)} if part["type"] == "audio" else part for part in content]
    plain = all(part["type"] == "text" for part in parts)
    return {**message, "content": "\n".join(part["text"] for part in parts) if plain else parts}


def _told(message: Mapping[str, Any], texts: Iterator[str]) -> dict[str, Any]:
    """A message with each medium's words in its place."""
    content = message["content"]
    if isinstance(content, str):
        return dict(message)
    return {**message, "content": "\n".join(_words(content, texts))}


def _words(parts: Sequence[Any], texts: Iterator[str]) -> list[str]:
    return [part["text"] if part["type"] == "text" else next(texts) for part in parts]
