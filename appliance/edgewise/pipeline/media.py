"""Media of a conversation: fetched, decoded and fitted for a model with eyes, or put into words for one without.

Comes before hooks and templates, so that those see what the model will see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from edgewise.core.errors import InvalidRequest
from edgewise.models.media.fitting import fit_picture
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
    process: Where media are decoded.
    """

    models: Models
    fetch: FetchPolicy | None
    max_bytes: int
    look: bool = True
    max_pixels: int | None = None
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
        if len(given.attachments) > MOST:
            raise InvalidRequest(
                f"This request has {len(given.attachments)} pictures and films: at most {MOST} are taken. Send fewer.",
                param=given.attachments[MOST].param,
            )
        if task.model.layout is None:
            return await self._described(task, given)
        return await self._fitted(task, given, task.model.layout)

    async def _fitted(self, task: Task, given: ChatInput, layout: Layout) -> Task:
        """For a model with eyes."""
        for one in given.attachments:
            if one.kind not in layout.markers:
                what = "films" if one.kind == "video" else "pictures"
                raise InvalidRequest(f"'{one.param}': the model '{task.model.name}' takes no {what}.", param=one.param)
        fitted = [await self._fit(task, one) for one in given.attachments]
        return replace(
            task,
            input=replace(given, attachments=(), media=tuple(one for one, _ in fitted)),
            media=tuple(medium for _, medium in fitted),
        )

    async def _fit(self, task: Task, attachment: Attachment) -> tuple[Fitted, MediumReceipt]:
        files = task.model.files
        assert files is not None
        most, name = self._bound(task, attachment)
        (data,) = await self._read(attachment)
        fitted, (width, height) = await asyncio.to_thread(
            fit_picture, self.process, files, data, attachment.param, max_pixels=most
        )
        receipt = MediumReceipt(
            of=attachment.param,
            kind=attachment.kind,
            width=width,
            height=height,
            seen_width=fitted.size[0],
            seen_height=fitted.size[1],
            frames=fitted.frames,
            tokens=sum(one.count for one in fitted.media),
            bounded_by=name,
        )
        return fitted, receipt

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


def _told(message: Any, texts: Iterator[str]) -> dict[str, Any]:
    """A message with each medium's words in its place."""
    content = message["content"]
    if isinstance(content, str):
        return dict(message)
    return {**message, "content": "\n".join(_words(content, texts))}


def _words(parts: Sequence[Any], texts: Iterator[str]) -> list[str]:
    return [part["text"] if part["type"] == "text" else next(texts) for part in parts]
