"""An encoder of texts or of pairs of them for an engine process; which candidate serves, and how it gets better, is in `rung`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from edgewise.core.errors import InvalidRequest
from edgewise.models.encoders.attend import LONG
from edgewise.models.encoders.graph import build_graph
from edgewise.models.encoders.memory import climb_space
from edgewise.models.encoders.network import Session
from edgewise.models.encoders.rows import Pair, Rows, unpack_pairs, unpack_rows
from edgewise.models.encoders.run import PairSession, TextSession
from edgewise.models.encoders.rung import Best, Book, Rung, place_of
from edgewise.models.encoders.shape import EncoderShape
from edgewise.models.encoders.text import shape_for
from edgewise.models.encoders.weights import Array, read_given, read_weights
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
    """Implements `engine.encoders.engine.Encoder`: each input is the rows of one request, its result their vectors.

    Of a cross-encoder the rows are pairs, and the result their numbers before the scale.
    """

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
        """Rows that the graph can take, of a cross-encoder with the beginnings of the second texts. Raises `InvalidRequest`."""
        del options
        rows = unpack_rows(content)
        read = rows if self._shape.head is None else [pair.ids for pair in unpack_pairs(rows)]
        for at, row in enumerate(read):
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

    def weigh(self, one: Rows) -> float:
        """See `engine.encoders.engine.Weighs`: tokens."""
        return float(sum(map(len, one)))

    def compute(self, inputs: Sequence[Rows]) -> list[Result]:
        """Vectors or scores as float32 in machine order, one after the other; rows of all requests share batches."""
        rung = self._best.rung
        read = inputs if self._shape.head is None else [unpack_pairs(request) for request in inputs]
        rows: list[Any] = [row for request in read for row in request]
        lengths = [len(row.ids if isinstance(row, Pair) else row) for row in rows]
        found = np.zeros((len(rows), self._shape.numbers), np.float32)
        for batch in batches(lengths):
            found[batch] = rung.session.run([rows[at] for at in batch])
        results: list[Result] = []
        at = 0
        for request in read:
            part = found[at : at + len(request)]
            at += len(request)
            results.append(({"precision": rung.precision, "width": self._shape.numbers}, part.tobytes()))
        return results


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts to compute together: of like length, and at most `MAX_BATCH_TOKENS` with their padding.

    A long text keeps all threads busy by itself, and needs no mask then (`attend`).
    """
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda it: lengths[it]):
        alike = not batch or lengths[at] <= _ALIKE * max(lengths[batch[0]], _SHORT)
        if not alike or lengths[at] >= LONG or (len(batch) + 1) * lengths[at] > MAX_BATCH_TOKENS:
            if batch:
                yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def load_text_encoder(files: ModelFiles, threads: int, **options: str) -> tuple[TextEncoder, str]:
    """An encoder of sentences, and its numeric class.

    Args:
        options: As `rung.place_of` reads them; `samples` is a file of prose.

    Raises:
        UnsupportedModel, BadModelFile: It cannot be read.
    """
    return _load(files, threads, "embeddings", options)


def load_cross_encoder(files: ModelFiles, threads: int, **options: str) -> tuple[TextEncoder, str]:
    """A cross-encoder; the rest as `load_text_encoder`."""
    return _load(files, threads, "rerank", options)


def _load(files: ModelFiles, threads: int, role: str, options: Mapping[str, str]) -> tuple[TextEncoder, str]:
    shape = shape_for(files, role)
    place = place_of(threads, options)
    order = place.order(files, role, climb_space(role, shape.weight_bytes))
    kind = TextSession if shape.head is None else PairSession
    best: Best[TextSession] = Best(
        order,
        lambda: _float32(files, shape, kind, threads),
        lambda _, path: kind(path, threads, read_given(files, shape)),
    )
    return TextEncoder(shape, best, partial(best.climb, place.climb_bytes)), place.numeric_class


def _float32(files: ModelFiles, shape: EncoderShape, kind: type[TextSession], threads: int) -> TextSession:
    """A large encoder's weights are given to the runtime as they are: a graph that holds them would be copied several times."""
    if not shape.given:
        return kind(build_graph(shape, read_weights(files, shape)).SerializeToString(), threads)
    given: dict[str, Array] = {}
    graph = build_graph(shape, read_weights(files, shape), given=given).SerializeToString()
    return kind(graph, threads, given)
