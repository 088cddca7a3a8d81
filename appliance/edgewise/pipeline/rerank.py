"""Documents ranked by how well they answer a query: by a cross-encoder, which reads both together, or by the vectors of each."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from edgewise.core.errors import ContextLengthExceeded
from edgewise.models.encoders.rows import Pair
from edgewise.models.encoders.shape import Head
from edgewise.models.encoders.text import TextFace
from edgewise.pipeline.embeddings import Embedded, EmbedTask, Vector, admitted, compute, embed, face_of
from edgewise.pipeline.hooks.hooks import Hooks

ScoredBy = Literal["cross-encoder", "cosine"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Attributes:
    order: (index, score) of each document, the best first, equal ones in the order given.
    scored_by: What the scores are.
    found: What was computed; of a cross-encoder indices are those of the documents.
    """

    order: tuple[tuple[int, float], ...]
    scored_by: ScoredBy
    found: Embedded


async def rerank(task: EmbedTask, hooks: Hooks, *, clock: Callable[[], float] = time.monotonic) -> Ranked:
    """The documents in order; `task.texts` are the query and the documents.

    Raises:
        ContextLengthExceeded: A document, with the query, is too long, and may not be cut. The others as `embed`.
    """
    face = face_of(task.model)
    if face.shape.head is None:
        found = await embed(task, hooks, clock=clock)
        order = await asyncio.to_thread(rank, found.vectors[0], found.vectors[1:])
        return Ranked(order, "cosine", found)
    texts, passage = await admitted(task, hooks)
    pairs, long = await asyncio.to_thread(_pairs, face, [text for text in texts if isinstance(text, str)])
    if long and not task.truncate:
        raise ContextLengthExceeded(
            f"'{task.field}' {long[0]} is too long: '{task.model.name}' reads at most {face.shape.max_tokens} tokens of query "
            "and document together. Send less, or 'truncate': true, which drops the end of the longer.",
            param=task.field,
        )
    found = await compute(task, pairs, long, passage, clock=clock)
    return Ranked(_sorted([scaled(vector[0], face.shape.head) for vector in found.vectors]), "cross-encoder", found)


def scaled(number: float, head: Head) -> float:
    """A score of what the network gives, as sentence-transformers' CrossEncoder makes it."""
    if head.scale == "identity":
        return number
    small = math.exp(-abs(number))
    return (1.0 if number >= 0 else small) / (1.0 + small)


def similarity(first: Vector, second: Vector) -> float:
    """The cosine of the angle between two vectors of length one."""
    return sum(a * b for a, b in zip(first, second, strict=True))


def rank(query: Vector, documents: Sequence[Vector]) -> tuple[tuple[int, float], ...]:
    """(index, similarity) of each document, the most similar first, equal ones in the order given."""
    return _sorted([similarity(query, document) for document in documents])


def _sorted(scores: Sequence[float]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(enumerate(scores), key=lambda it: -it[1]))


def _pairs(face: TextFace, texts: Sequence[str]) -> tuple[list[Pair], tuple[int, ...]]:
    """The query with each document, and the indices of the documents that are too long with it."""
    made = face.tokenizer.pairs(texts[0], texts[1:], face.shape.max_tokens)
    return [pair for pair, _ in made], tuple(at for at, (_, long) in enumerate(made) if long)
