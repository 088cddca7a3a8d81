"""An encoder of texts for an engine process; which of its candidates serves, and how it gets better, is in `rung`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from edgewise.core.errors import InvalidRequest
from edgewise.models.encoders.graph import build_graph
from edgewise.models.encoders.memory import climb_space
from edgewise.models.encoders.network import Session
from edgewise.models.encoders.rows import Rows, unpack_rows
from edgewise.models.encoders.run import TextSession
from edgewise.models.encoders.rung import Best, Book, Rung, place_of
from edgewise.models.encoders.shape import EncoderShape, read_shape
from edgewise.models.encoders.weights import read_weights
from edgewise.models.files import ModelFiles

PARAM: Final = "input"
MAX_BATCH_TOKENS: Final = 4096
"""Of texts that are computed together, padding included."""
_ALIKE: Final = 1.5
"""The longest text of a batch is no longer than the shortest by more than this factor: padding costs as much as text."""
_SHORT: Final = 16
"""Tokens below which texts count as equally long."""

Result = tuple[Mapping[str, Any], bytes]


class Serves(Protocol):
    """`rung.Best`, or a test's double: its rung may be replaced by another thread at any time."""

    @property
    def rung(self) -> Rung[Session]: ...


class TextEncoder:
    """Implements `engine.encoders.engine.Encoder`: each input is the rows of one request, its result their vectors."""

    def __init__(self, shape: EncoderShape, best: Serves, climb: Callable[[Book], None] | None = None) -> None:
        self._best = best
        self._shape = shape
        self._climb = climb

    def improve(self, book: Book) -> None:
        """See `engine.encoders.climbs.Improves`."""
        if self._climb is not None:
            self._climb(book)

    @property
    def precision(self) -> str:
        """Of what serves now."""
        return self._best.rung.precision

    def check(self, content: bytes, options: Mapping[str, Any]) -> Rows:
        """Rows that the graph can take. Raises `InvalidRequest`."""
        del options
        rows = unpack_rows(content)
        for at, row in enumerate(rows):
            if not 0 < len(row) <= self._shape.max_tokens:
                raise InvalidRequest(
                    f"'{PARAM}' {at} has {len(row)} tokens; this model reads 1 to {self._shape.max_tokens}.",
                    param=PARAM,
                )
            if max(row) >= self._shape.vocab:
                raise InvalidRequest(
                    f"'{PARAM}' {at} has the token id {max(row)}; this model knows those below {self._shape.vocab}.",
                    param=PARAM,
                )
        return rows

    def compute(self, inputs: Sequence[Rows]) -> list[Result]:
        """Vectors as float32 in machine order, one after the other; rows of all requests share batches."""
        rung = self._best.rung
        rows = [row for request in inputs for row in request]
        vectors = np.zeros((len(rows), self._shape.width), np.float32)
        for batch in batches([len(row) for row in rows]):
            vectors[batch] = rung.session.run([rows[at] for at in batch])
        results: list[Result] = []
        at = 0
        for request in inputs:
            part = vectors[at : at + len(request)]
            at += len(request)
            results.append(({"precision": rung.precision, "width": self._shape.width}, part.tobytes()))
        return results


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts to compute together: of like length, and at most `MAX_BATCH_TOKENS` with their padding."""
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda it: lengths[it]):
        alike = not batch or lengths[at] <= _ALIKE * max(lengths[batch[0]], _SHORT)
        if not alike or (len(batch) + 1) * lengths[at] > MAX_BATCH_TOKENS:
            if batch:
                yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def load_text_encoder(files: ModelFiles, threads: int, **options: str) -> tuple[TextEncoder, str]:
    """The encoder, and its numeric class.

    Args:
        options: As `rung.place_of` reads them; `samples` is a file of prose.

    Raises:
        UnsupportedModel, BadModelFile: It cannot be read.
    """
    shape = read_shape(files)
    place = place_of(threads, options)
    order = place.order(files, "embeddings", climb_space("embeddings", shape.weight_bytes))
    best: Best[TextSession] = Best(
        order, lambda: _float32(files, shape, threads), lambda _, path: TextSession(path, threads)
    )
    return TextEncoder(shape, best, partial(best.climb, place.climb_bytes)), place.numeric_class


def _float32(files: ModelFiles, shape: EncoderShape, threads: int) -> TextSession:
    return TextSession(build_graph(shape, read_weights(files, shape)).SerializeToString(), threads)
