"""Media of a conversation: fetched, decoded and fitted for a model with eyes, or put into words for one without.

Comes before hooks and templates, so that those see what the model will see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from edgewise.core.errors import InvalidRequest
from edgewise.models.media.fitting import FilmWish, fit_film, fit_picture
from edgewise.models.media.process import MediaProcess
from edgewise.models.media.source import read_source
from edgewise.models.multimodal.layout import Fitted, Layout
from edgewise.pipeline.attachments import Attachment
from edgewise.pipeline.look import describe_all, lookers
from edgewise.pipeline.model import Models
from edgewise.pipeline.receipts import MediumReceipt
from edgewise.pipeline.task import ChatInput, Task
from edgewise.security.fetch import FetchPolicy

MOST: Final = 32
"""Media in one request."""
LOW_DETAIL_PIXELS: Final = 512 * 512
"""What is seen of a picture with detail "low"."""
_FETCHED_TOGETHER: Final = 4


@dataclass(frozen=True, kw_only=True)
class MediaDesk:
    """Attributes:
    models: Where models that look at pictures are found.
    fetch: What may be fetched for URLs; None fetches nothing.
    max_bytes: Of one medium, encoded.
    look: Whether pictures are put into words for a model without eyes.
    max_pixels: That a model sees of a picture at most; None leaves it to the model.
    film_tokens: That a film may take of a prompt.
    process: Where media are decoded.
    """

    models: Models
    fetch: FetchPolicy | None
    max_bytes: int
    look: bool = True
    max_pixels: int | None = None
    film_tokens: int = 2048
    process: MediaProcess = field(default_factory=MediaProcess)
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_FETCHED_TOGETHER))

    async def gather(self, task: Task) -> Task:
        """The same task with its media where the model can see them. A caller who leaves cancels it.

        Raises:
            InvalidRequest: A medium that cannot be had, is damaged or beyond a limit, or nobody here who could look at it.
            QueueFull, EngineUnavailable, OutOfMemory, DeadlineExceeded: As of every engine.
        """
        given = task.input
        if not isinstance(given, ChatInput) or not given.attachments:
            return task
        count = sum(len(one.urls) for one in given.attachments)
        if count > MOST:
            raise InvalidRequest(
                f"This request has {count} pictures and films: at most {MOST} are taken. Send fewer.",
                param=given.attachments[-1].param,
            )
        if task.model.layout is None:
            return await self._described(task, given)
        return await self._fitted(task, given, task.model.layout)

    async def _fitted(self, task: Task, given: ChatInput, layout: Layout) -> Task:
        """For a model with eyes."""
        for one in given.attachments:
            if one.kind == "image" and "image" not in layout.markers:
                raise InvalidRequest(
                    f"'{one.param}': the model '{task.model.name}' takes no pictures.", param=one.param
                )
        shown = [await self._show(task, one, layout) for one in given.attachments]
        parts = iter([one.parts for one in shown])
        messages = tuple(_replaced(message, parts) for message in given.messages)
        media = tuple(fitted for one in shown for fitted in one.fitted)
        return replace(
            task,
            input=replace(given, messages=messages, attachments=(), media=media),
            media=tuple(one.receipt for one in shown),
        )

    async def _show(self, task: Task, attachment: Attachment, layout: Layout) -> _Shown:
        files, param = task.model.files, attachment.param
        assert files is not None
        most, bounded_by = self._bound(task, attachment)
        data = await self._read(attachment)
        every: float | None = None
        fitted: tuple[Fitted, ...]
        if attachment.kind == "image":
            one, came = await asyncio.to_thread(fit_picture, self.process, files, data[0], param, max_pixels=most)
            fitted, frames, parts = (one,), 1, [_IMAGE]
        else:
            wish = FilmWish(fps=attachment.fps, frames=attachment.frames, max_tokens=self.film_tokens, max_pixels=most)
            film = await asyncio.to_thread(fit_film, self.process, files, data, param, wish)
            fitted, came, frames, every = film.parts, film.came, film.frames, film.every_s
            parts = [_VIDEO] if "video" in layout.markers else _stills(frames, every)
        receipt = MediumReceipt(
            of=param,
            kind=attachment.kind,
            width=came[0],
            height=came[1],
            seen_width=fitted[0].size[0],
            seen_height=fitted[0].size[1],
            frames=frames,
            every_s=None if every is None else round(every, 3),
            tokens=sum(medium.count for one in fitted for medium in one.media),
            bounded_by=bounded_by,
        )
        return _Shown(parts, fitted, receipt)

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
        film = next((one for one in given.attachments if one.kind != "image"), None)
        found = await lookers(self.models) if self.look and film is None else []
        if not found:
            raise await self._nobody_looks(task, film or given.attachments[0])
        pictures = [(one, (await self._read(one))[0]) for one in given.attachments]
        described = await describe_all(task, found, pictures)
        texts = iter([one.text for one in described])
        count, names = len(described), " and ".join(f"'{one.name}'" for one in found)
        told = "a picture" if count == 1 else f"{count} pictures"
        warnings = [
            f"The model '{task.model.name}' has no eyes: {names} looked at {told}, and it was told what they saw."
        ]
        warnings += [f"'{one.medium.of}' has more text than is told." for one in described if one.cut]
        return replace(
            task,
            input=replace(given, messages=tuple(_told(message, texts) for message in given.messages), attachments=()),
            looks=tuple(look for one in described for look in one.looks),
            media=tuple(one.medium for one in described),
            warnings=(*task.warnings, *warnings),
        )

    async def _read(self, attachment: Attachment) -> list[bytes]:
        """The bytes behind each of its URLs."""

        async def one(url: str) -> bytes:
            async with self._room:
                return await asyncio.to_thread(
                    read_source, url, attachment.param, max_bytes=self.max_bytes, policy=self.fetch
                )

        return [await one(url) for url in attachment.urls]

    async def _nobody_looks(self, task: Task, attachment: Attachment) -> InvalidRequest:
        what = "a film" if attachment.kind == "video" else "a picture"
        seeing = [name for name in await self.models.seeing() if name != task.model.name]
        remedies = []
        if seeing:
            remedies.append(f"ask a model that has ({', '.join(seeing)})")
        if attachment.kind == "image" and self.look:
            remedies.append(
                "have models look for it (`edgewise models pull rapidocr` for text, `edgewise models pull "
                "efficientnet-lite0` for things)"
            )
        elif attachment.kind == "image":
            remedies.append("switch `vision.look` on")
        remedies.append("install a vision language model")
        return InvalidRequest(
            f"'{attachment.param}' is {what}, and the model '{task.model.name}' has no eyes: {', or '.join(remedies)}.",
            param=attachment.param,
        )


@dataclass(frozen=True, slots=True)
class _Shown:
    """Attributes:
    parts: What stands for a medium in its message.
    fitted: One for each of them that is no text.
    """

    parts: Sequence[Mapping[str, Any]]
    fitted: tuple[Fitted, ...]
    receipt: MediumReceipt


_IMAGE: Final[Mapping[str, Any]] = {"type": "image"}
_VIDEO: Final[Mapping[str, Any]] = {"type": "video"}


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


def _told(message: Mapping[str, Any], texts: Iterator[str]) -> dict[str, Any]:
    """A message with each medium's words in its place."""
    content = message["content"]
    if isinstance(content, str):
        return dict(message)
    return {**message, "content": "\n".join(_words(content, texts))}


def _words(parts: Sequence[Any], texts: Iterator[str]) -> list[str]:
    return [part["text"] if part["type"] == "text" else next(texts) for part in parts]
