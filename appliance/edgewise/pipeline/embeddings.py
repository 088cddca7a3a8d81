"""Texts to vectors: hooks, tokens, requests to the encoder, and the vectors in order."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from edgewise.core.errors import ContextLengthExceeded, EngineFault, InvalidRequest
from edgewise.core.patience import end_task
from edgewise.core.priority import Priority
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.models.encoders.rows import Pair, pack_pairs, pack_rows
from edgewise.models.encoders.text import TextFace
from edgewise.pipeline.encode import encode
from edgewise.pipeline.encoder_receipts import device_s
from edgewise.pipeline.hooks.hooks import Hooks, Passage
from edgewise.pipeline.hooks.protocol import Call, PromptText
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.run_base import fault_of

ROWS: Final = 32
"""Texts in one request to the engine: so many that a batch pays, and so few that an urgent request does not wait long."""

Text = str | tuple[int, ...]
Vector = Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTask:
    """One request; what is not said here is as in `pipeline.task.Task`.

    Attributes:
        texts: Or their token ids, special tokens included.
        field: The request's field that holds them, for messages.
        truncate: Drop the end of what is too long; otherwise it is refused.
    """

    id: str
    model: ServedEncoder
    texts: tuple[Text, ...]
    field: str
    truncate: bool = False
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """Attributes:
    vectors: One for each text, of length one.
    tokens: Of all texts, as they were computed.
    truncated: Indices of the texts that lost their end.
    precision: The candidate that computed them (docs/encoders.md).
    took_s: From the first request to the engine to the last answer.
    compute_s: Of that, the longest time in a batch.
    device_s: Time of the encoder in all: of each batch, the share of these texts.
    """

    vectors: tuple[array[float], ...]
    tokens: int
    truncated: tuple[int, ...]
    precision: str
    took_s: float
    compute_s: float
    device_s: float = 0.0


async def embed(task: EmbedTask, hooks: Hooks, *, clock: Callable[[], float] = time.monotonic) -> Embedded:
    """Vectors of all texts.

    Raises:
        ContentRefused, HookFailed: A hook refuses a text, or failed.
        ContextLengthExceeded: A text is too long, and may not be cut.
        InvalidRequest: A token id that the model does not know.
        QueueFull, EngineUnavailable, OutOfMemory: The engine takes no more, is not there, or has no room for it.
    """
    face = face_of(task.model)
    texts, passage = await admitted(task, hooks)
    rows = await asyncio.to_thread(_tokens, face, texts)
    rows, truncated = _within(task, face, rows)
    return await compute(task, rows, truncated, passage, clock=clock)


async def compute(
    task: EmbedTask,
    rows: Sequence[Sequence[int] | Pair],
    truncated: tuple[int, ...],
    passage: Passage | None,
    *,
    clock: Callable[[], float],
) -> Embedded:
    """What the encoder makes of rows, or of pairs. Raises as `embed`."""
    lengths = [len(row.ids if isinstance(row, Pair) else row) for row in rows]
    tokens = sum(lengths)
    began, parts = clock(), _parts(lengths)
    try:
        if passage is not None:
            await passage.begin(tokens, 1)
        chunks = await _ask(task, rows, parts)
    except BaseException as error:
        if passage is not None:
            await passage.end(fault_of(error))
        raise
    if passage is not None:
        await passage.pass_picture(0, b"".join(chunk.content for chunk in chunks))
    return Embedded(
        vectors=_in_order(parts, chunks, face_of(task.model).shape.numbers),
        tokens=tokens,
        truncated=truncated,
        precision=" + ".join(dict.fromkeys(str(chunk.result["precision"]) for chunk in chunks)),
        took_s=clock() - began,
        compute_s=max((chunk.stats.compute_s for chunk in chunks if chunk.stats is not None), default=0.0),
        device_s=device_s(chunk.stats for chunk in chunks),
    )


def shortened(vector: array[float], count: int) -> array[float]:
    """The first `count` numbers of a vector, again of length one. For models that were trained for it."""
    cut = vector[:count]
    length = math.sqrt(sum(value * value for value in cut))
    return cut if length == 0.0 else array("f", [value / length for value in cut])


def face_of(model: ServedEncoder) -> TextFace:
    if model.face is None:
        raise InvalidRequest(f"The model '{model.name}' reads no texts.", param="model")
    return model.face


async def admitted(task: EmbedTask, hooks: Hooks) -> tuple[tuple[Text, ...], Passage | None]:
    """The texts that the hooks let through; they read words, so token ids are not taken where there are hooks.

    Raises:
        ContentRefused, HookFailed, InvalidRequest: As `embed`.
    """
    if not hooks:
        return task.texts, None
    if any(not isinstance(text, str) for text in task.texts):
        raise InvalidRequest(
            f"'{task.field}' has token ids, and this service has hooks that read what is asked: send text.",
            param=task.field,
        )
    call = Call(request_id=task.id, key=task.key, model=task.model.name, digest=task.model.digest)
    asked = [PromptText(task.field, text) for text in task.texts if isinstance(text, str)]
    passed, passage = await hooks.admit_texts(call, asked)
    return tuple(one.text for one in passed), passage


def _tokens(face: TextFace, texts: Sequence[Text]) -> list[Sequence[int]]:
    read = iter(face.tokenizer.encode([face.shape.prompt + text for text in texts if isinstance(text, str)]))
    return [next(read) if isinstance(text, str) else text for text in texts]


def _within(
    task: EmbedTask, face: TextFace, rows: Sequence[Sequence[int]]
) -> tuple[list[Sequence[int]], tuple[int, ...]]:
    """Rows of a length that the model reads. Raises as `embed`."""
    most = face.shape.max_tokens
    long = tuple(at for at, row in enumerate(rows) if len(row) > most)
    if long and not task.truncate:
        raise ContextLengthExceeded(
            f"'{task.field}' {long[0]} has {len(rows[long[0]])} tokens; '{task.model.name}' reads at most {most}. Send less, or "
            "'truncate': true, which drops the end.",
            param=task.field,
        )
    if any(not row for row in rows):
        raise InvalidRequest(
            f"'{task.field}' has an empty text: there is nothing to make a vector of.", param=task.field
        )
    return [face.tokenizer.shorten(row, most) for row in rows], long


async def _ask(
    task: EmbedTask, rows: Sequence[Sequence[int] | Pair], parts: Sequence[Sequence[int]]
) -> list[EncodeChunk]:
    """A request for each part, all under way at once. If one fails, the others are cancelled."""
    asked = [asyncio.create_task(_one(task, number, [rows[at] for at in part])) for number, part in enumerate(parts)]
    try:
        return list(await asyncio.gather(*asked))
    finally:
        await end_task(*asked)


async def _one(task: EmbedTask, number: int, rows: Sequence[Sequence[int] | Pair]) -> EncodeChunk:
    pairs = [row for row in rows if isinstance(row, Pair)]
    plain = [row for row in rows if not isinstance(row, Pair)]
    request = EncodeRequest(
        id=f"{task.id}/{number}",
        content=pack_pairs(pairs, task.field) if pairs else pack_rows(plain, task.field),
        key=task.key,
        priority=task.priority,
        deadline_s=task.deadline_s,
    )
    return await encode(task.model, request)


def _parts(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of `ROWS` rows that are asked for together, the shortest rows first."""
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    return [order[at : at + ROWS] for at in range(0, len(order), ROWS)]


def _in_order(parts: Sequence[Sequence[int]], chunks: Sequence[EncodeChunk], width: int) -> tuple[array[float], ...]:
    vectors: list[array[float]] = [array("f")] * sum(map(len, parts))
    for part, chunk in zip(parts, chunks, strict=True):
        numbers = array("f")
        numbers.frombytes(chunk.content)
        if len(numbers) != width * len(part):
            raise EngineFault(f"The engine gave {len(numbers)} numbers for {len(part)} vectors of {width}.")
        for number, at in enumerate(part):
            vectors[at] = numbers[number * width : (number + 1) * width]
    return tuple(vectors)
