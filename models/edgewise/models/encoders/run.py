"""One encoder in ONNX Runtime: rows of token ids in, unit vectors out; of a cross-encoder pairs of texts in, a number out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from edgewise.models.encoders.graph import IDS, MASK, OUT, TYPES
from edgewise.models.encoders.rows import Pair
from edgewise.models.encoders.weights import Array
from edgewise.models.onnx_session import open_quiet


class TextSession:
    """A loaded graph. `run` may be called from several threads.

    Args:
        model: The graph's bytes, or the file that holds them.
        threads: That compute one call together.
        given: Constants that the graph does not hold itself (`weights.read_given`).
    """

    def __init__(self, model: bytes | Path, threads: int, given: Mapping[str, Array] = MappingProxyType({})) -> None:
        self._given = given  # ONNX Runtime reads these where they are
        self._session = open_quiet(model, threads, given)

    def run(self, rows: Sequence[Any]) -> Array:
        """Vectors [rows, width], float32, of length one.

        Args:
            rows: Token ids; shorter rows are padded and masked.
        """
        (vectors,) = self._session.run([OUT], feed(rows))
        return np.asarray(vectors, np.float32)

    def outputs(self, rows: Sequence[Any], names: Sequence[str]) -> list[Array]:
        """Other outputs of the graph by name, rows of real tokens only: [tokens, width]."""
        return self._real(feed(rows), names)

    def _real(self, inputs: dict[str, Any], names: Sequence[str]) -> list[Array]:
        real = inputs[MASK].astype(bool)
        return [np.asarray(value, np.float32)[real] for value in self._session.run(list(names), inputs)]


class PairSession(TextSession):
    """The same of a cross-encoder."""

    def run(self, rows: Sequence[Any]) -> Array:
        """Numbers [pairs, 1], float32, before their scale. `rows` are `Pair`s."""
        (numbers,) = self._session.run([OUT], feed_pairs(rows))
        return np.asarray(numbers, np.float32)

    def outputs(self, rows: Sequence[Any], names: Sequence[str]) -> list[Array]:
        return self._real(feed_pairs(rows), names)


def feed(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The graph's inputs [rows, longest row]."""
    longest = max(map(len, rows))
    ids, mask = (np.zeros((len(rows), longest), np.int64) for _ in range(2))
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return {IDS: ids, MASK: mask}


def feed_pairs(pairs: Sequence[Pair]) -> dict[str, Any]:
    """As `feed`, and which tokens are those of the second text."""
    inputs = feed([pair.ids for pair in pairs])
    types = np.zeros_like(inputs[IDS])
    for at, pair in enumerate(pairs):
        types[at, pair.second : len(pair.ids)] = 1
    return {**inputs, TYPES: types}
