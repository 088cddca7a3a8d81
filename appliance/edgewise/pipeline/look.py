"""Pictures for a language model without eyes: models that read text and name things look, and their words are its prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from edgewise.core.errors import InvalidRequest, ModelNotFound
from edgewise.models.manifest import Role
from edgewise.pipeline.attachments import Attachment
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.receipts import LookReceipt, MediumReceipt
from edgewise.pipeline.task import Task
from edgewise.pipeline.vision import Look, LookTask, look

ROLES: Final[tuple[Role, ...]] = ("ocr", "vision")
LABELS: Final = 3
LEAST_SCORE: Final = 0.2
"""Probability below which a label says nothing: there are 1,000, one of which is always the likeliest."""
MOST_CHARACTERS: Final = 4000
"""Of one picture's text that is told."""
_SIDE_BY_SIDE: Final = 4
"""Pictures of one request that are looked at together; the engines have a short queue."""


class OpensEncoders(Protocol):
    """The part of `pipeline.model.Models` that is needed here."""

    async def open_encoder(
        self, role: Role, name: str | None, *, keep_alive_s: float | None = None
    ) -> ServedEncoder: ...


@dataclass(frozen=True, slots=True)
class Described:
    """A picture in words.

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
    task: Task, lookers: Sequence[ServedEncoder], pictures: Sequence[tuple[Attachment, bytes]]
) -> list[Described]:
    """Every picture in words, in their order. A caller who leaves cancels it.

    Raises:
        InvalidRequest: It is no picture, or beyond a limit.
        QueueFull, EngineUnavailable, OutOfMemory, DeadlineExceeded: As of every engine.
    """
    room = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def one(index: int, attachment: Attachment, data: bytes) -> Described:
        async with room:
            looks = await _together([_look(task, looker, index, attachment, data) for looker in lookers])
        return _described(attachment, looks)

    return await _together([one(index, *given) for index, given in enumerate(pictures)])


async def _together(work: Sequence[Any]) -> list[Any]:
    """All results; the first error ends the others and is raised as it is."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _look(
    task: Task, looker: ServedEncoder, index: int, attachment: Attachment, data: bytes
) -> tuple[ServedEncoder, Look]:
    request = LookTask(
        id=f"{task.id}/look-{looker.role}-{index}",
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


def _described(attachment: Attachment, looks: Sequence[tuple[ServedEncoder, Look]]) -> Described:
    seen = {looker.role: found.seen for looker, found in looks}
    size = looks[0][1].seen
    text, cut = words(seen)
    return Described(
        text=text,
        looks=tuple(_receipt(attachment, looker, found) for looker, found in looks),
        medium=MediumReceipt(
            of=attachment.param,
            kind="image",
            width=size["width"],
            height=size["height"],
            seen_width=size["width"],
            seen_height=size["height"],
            frames=1,
            every_s=None,
            tokens=0,
            bounded_by=None,
        ),
        cut=cut,
    )


def words(seen: Mapping[Role, Mapping[str, Any]]) -> tuple[str, bool]:
    """What models saw, by their role, as a text for a prompt; and whether text in the picture was cut off."""
    text = "\n".join(line["text"] for line in seen["ocr"]["lines"]) if "ocr" in seen else ""
    labels = seen["vision"]["labels"] if "vision" in seen else ()
    names = [label["name"] for label in labels if label["score"] >= LEAST_SCORE]
    told = f"A picture. Text in it:\n{text[:MOST_CHARACTERS]}" if text else "A picture."
    if "ocr" in seen and not text:
        told += " There is no text in it."
    if names:
        told += ("\n" if text else " ") + f"It shows: {', '.join(names)}."
    elif "vision" in seen and not text:
        told += " It is not known what it shows."
    return told, len(text) > MOST_CHARACTERS


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
