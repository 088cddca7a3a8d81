"""Pictures and films for a language model without eyes: others look, which read text and name things, and it is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

from edgewise.core.errors import InvalidRequest, ModelNotFound
from edgewise.core.patience import end_task
from edgewise.models.manifest import Role
from edgewise.models.media.fitting import FilmPictures
from edgewise.pipeline.attachments import Attachment
from edgewise.pipeline.look_words import film_words, words
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.receipts import LookReceipt, MediumReceipt
from edgewise.pipeline.task import Task
from edgewise.pipeline.vision import Look, LookTask, look

ROLES: Final[tuple[Role, ...]] = ("ocr", "vision")
LABELS: Final = 3
FRAMES: Final = 8
"""Of a film that are looked at, where nobody says otherwise: reading one takes about a second of a core."""
SIDE_BY_SIDE: Final = 4
"""Pictures of one request that are looked at together; the engines have a short queue."""

Looked: TypeAlias = tuple[ServedEncoder, Look]
Shown: TypeAlias = "bytes | FilmPictures"
"""An encoded picture, or a film's."""


class OpensEncoders(Protocol):
    """The part of `pipeline.model.Models` that is needed here."""

    async def open_encoder(
        self, role: Role, name: str | None, *, keep_alive_s: float | None = None
    ) -> ServedEncoder: ...


@dataclass(frozen=True, slots=True)
class Described:
    """A picture or a film in words.

    Attributes:
        text: For the prompt.
        looks: Who looked.
        medium: What of it was seen.
        cut: Whether it has more text than is told.
    """

    text: str
    looks: tuple[LookReceipt, ...]
    medium: MediumReceipt
    cut: bool


async def lookers(models: OpensEncoders) -> list[ServedEncoder]:
    """The installed models that can look at a picture; empty where there are none."""
    found = []
    for role in ROLES:
        try:
            found.append(await models.open_encoder(role, None))
        except ModelNotFound:
            continue
    return found


async def describe_all(
    task: Task, lookers: Sequence[ServedEncoder], shown: Sequence[tuple[Attachment, Shown]]
) -> list[Described]:
    """Every picture and film in words, in their order. A caller who leaves cancels it.

    Raises:
        InvalidRequest: It is no picture, or beyond a limit.
        QueueFull, EngineUnavailable, OutOfMemory, DeadlineExceeded: As of every engine.
    """
    room = asyncio.Semaphore(SIDE_BY_SIDE)

    async def picture(place: str, attachment: Attachment, data: bytes) -> list[Looked]:
        async with room:
            return await _together([_look(task, looker, place, attachment, data) for looker in lookers])

    async def one(index: int, attachment: Attachment, given: Shown) -> Described:
        if isinstance(given, bytes):
            return _described(attachment, await picture(str(index), attachment, given))
        frames = [picture(f"{index}.{at}", attachment, data) for at, data in enumerate(given.pictures)]
        return _film_described(attachment, given, await _together(frames))

    return await _together([one(index, *given) for index, given in enumerate(shown)])


async def _together(work: Sequence[Any]) -> list[Any]:
    """All results; the first error ends the others and is raised as it is."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await end_task(*tasks)


async def _look(task: Task, looker: ServedEncoder, place: str, attachment: Attachment, data: bytes) -> Looked:
    request = LookTask(
        id=f"{task.id}/look-{looker.role}-{place}",
        model=looker,
        picture=data,
        options={"top": LABELS} if looker.role == "vision" else {},
        key=task.key,
        priority=task.priority,
        deadline_s=task.deadline_s,
        privacy=task.privacy,
    )
    try:
        return looker, await look(request)
    except InvalidRequest as error:
        message = error.message.replace("'image'", f"'{attachment.param}'")
        raise InvalidRequest(message, param=attachment.param) from error


def _described(attachment: Attachment, looks: Sequence[Looked]) -> Described:
    text, cut = words({looker.role: found.seen for looker, found in looks})
    size = looks[0][1].seen
    medium = _medium(attachment, (size["width"], size["height"]))
    return Described(text, tuple(_receipt(attachment, *one) for one in looks), medium, cut)


def _film_described(attachment: Attachment, film: FilmPictures, frames: Sequence[Sequence[Looked]]) -> Described:
    text, cut = film_words([{looker.role: found.seen for looker, found in looks} for looks in frames], film.every_s)
    medium = replace(_medium(attachment, film.came), frames=len(frames), every_s=round(film.every_s, 3))
    return Described(text, tuple(_summed(attachment, looks) for looks in zip(*frames, strict=True)), medium, cut)


def _medium(attachment: Attachment, size: tuple[int, int]) -> MediumReceipt:
    return MediumReceipt(
        of=attachment.param,
        kind=attachment.kind,
        width=size[0],
        height=size[1],
        seen_width=size[0],
        seen_height=size[1],
        frames=1,
        every_s=None,
        tokens=0,
        bounded_by=None,
    )


def _summed(attachment: Attachment, looks: Sequence[Looked]) -> LookReceipt:
    """Of one model that looked at the frames of a film: times of all, and the longest wait."""
    parts = [_receipt(attachment, *one) for one in looks]
    first = parts[0]
    waits = [it.queued_ms for it in parts if it.queued_ms is not None]
    times = [it.compute_ms for it in parts if it.compute_ms is not None]
    used = [one for part in parts for one in part.encoders]
    spent, inputs = round(sum(it.device_ms for it in used), 3), sum(it.inputs for it in used)
    return replace(
        first,
        queued_ms=max(waits, default=None),
        restarts=None if first.restarts is None else sum(it.restarts or 0 for it in parts),
        compute_ms=round(sum(times), 3) if times else None,
        encoders=tuple(replace(it, device_ms=spent, inputs=inputs) for it in first.encoders),
        frames=len(parts),
    )


def _receipt(attachment: Attachment, looker: ServedEncoder, found: Look) -> LookReceipt:
    (stage,) = found.receipt["stages"]
    return LookReceipt(
        encoders=found.encoders,
        stage="look",
        where="local",
        why=f"The model that is asked has no eyes: {looker.name} looked for it.",
        numeric_class=stage["numeric_class"],
        precision=None,
        queued_ms=stage["queued_ms"],
        restarts=stage["restarts"],
        preemptions=None,
        model=looker.name,
        of=attachment.param,
        compute_ms=stage["compute_ms"],
    )
