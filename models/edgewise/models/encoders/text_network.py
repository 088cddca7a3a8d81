"""A text encoder as the ladder sees it: groups of products in float32, static 8 bits or blocks of 8 bits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from edgewise.core.errors import BadModelFile
from edgewise.models.encoders.calibrate import Calibration, calibrate
from edgewise.models.encoders.graph import BLOCK, PARTS, Form, build_graph, groups, products
from edgewise.models.encoders.rows import Pair
from edgewise.models.encoders.run import PairSession, TextSession
from edgewise.models.encoders.shape import EncoderShape, read_shape
from edgewise.models.encoders.text import load_tokenizer
from edgewise.models.encoders.weights import WORDS, Array, read_weights
from edgewise.models.files import ModelFiles

MANY: Final = 16
"""Sentences of the larger timing."""
SENTENCES: Final = 64
"""For the calibration, and as many others for the gate."""
_UNITS: Final = 12
"""In so many parts at most, each judged alone in each form, an encoder is divided for the mixture."""
_TAP_BYTES: Final = 128 << 20
_END: Final = re.compile(r"(?<=[.!?])\s+")
_SHORTEST, _LONGEST = 24, 400


class TextNetwork:
    """Implements `network.Network`.

    Args:
        shape, weights: The encoder.
        calibration, judged: Rows of real sentences, or of a cross-encoder `Pair`s of them; not the same ones.
        gate: Least cosine to float32.
        threads: As the encoder will run.
    """

    def __init__(
        self,
        shape: EncoderShape,
        weights: Mapping[str, Array],
        calibration: Sequence[Any],
        judged: Sequence[Any],
        *,
        gate: float,
        threads: int,
    ) -> None:
        self.judged = judged
        self.gate = gate
        self.many = MANY
        self.groups = groups(shape)
        self.units = _units(shape)
        self.wholes = {"int8-static": "static"}
        self.absent: dict[str, str] = {}
        if shape.width % BLOCK == 0 and shape.hidden % BLOCK == 0:
            self.wholes["int8-blocks"] = "blocks"
        else:
            self.absent["int8-blocks"] = f"rows of its products are no multiple of {BLOCK}"
        self._shape = shape
        self._weights = weights
        self._calibration = calibration
        self._threads = threads
        self._calibrations: dict[str, Calibration] = {}

    def calibrate(self) -> None:
        """From the inputs of every group, of as many sentences as fit in `_TAP_BYTES`."""
        tapped = self.open(build_graph(self._shape, self._weights, taps=True).SerializeToString())
        a_token = 4 * self._shape.layers * (3 * self._shape.width + self._shape.hidden)
        room = _TAP_BYTES // a_token
        inputs: dict[str, list[Array]] = {name: [] for name in self.groups}
        for row in self._calibration:
            length = len(row.ids if isinstance(row, Pair) else row)
            if length > room:
                break
            room -= length
            taps = tapped.outputs([row], [f"{it}.in" for it in self.groups])
            for name, value in zip(self.groups, taps, strict=True):
                inputs[name].append(value)
        for name, values in inputs.items():
            weights = [self._weights[f"{product}.weight"].T for product in products(self._shape, name)]
            self._calibrations[name] = calibrate(np.concatenate(values), weights)

    def size(self, group: str) -> float:
        return sum(self._weights[f"{it}.weight"].size for it in products(self._shape, group))

    def build(self, forms: Mapping[str, str]) -> bytes:
        typed = cast("Mapping[str, Form]", forms)
        return bytes(build_graph(self._shape, self._weights, typed, self._calibrations).SerializeToString())

    def open(self, model: bytes | Path) -> TextSession:
        given = {WORDS: self._weights[WORDS]} if self._shape.given else {}
        return (TextSession if self._shape.head is None else _JudgedPairs)(model, self._threads, given)


class _JudgedPairs(PairSession):
    """Gives each number a 1 beside it, so that the ladder's cosine says how far numbers lie apart.

    It is that between the directions of (x, 1) and (y, 1): above 0.999 the sigmoids of x and y differ by less than 0.024.
    """

    def run(self, rows: Sequence[Any]) -> Array:
        numbers = super().run(rows)
        return np.concatenate([numbers, np.ones_like(numbers)], axis=1)


def text_network(files: ModelFiles, samples: Path | None, gate: float, threads: int) -> TextNetwork:
    """The network of an encoder of sentences or of a cross-encoder; `samples` is a file of prose.

    Raises:
        UnsupportedModel, BadModelFile: It cannot be read, or the text has too few sentences.
    """
    shape = read_shape(files)
    tokenizer = load_tokenizer(files)
    if samples is None:
        raise BadModelFile(f"{files.name} has no prose of its own to be calibrated with.")
    found = sentences(samples.read_text(encoding="utf-8"))
    if len(found) < 2 * MANY:
        raise BadModelFile(f"{samples.name} has {len(found)} sentences; {2 * MANY} are needed.")
    rows: list[Any]
    if shape.head is None:
        rows = [tokenizer.shorten(ids, shape.max_tokens) for ids in tokenizer.encode(found[: 2 * SENTENCES])]
    else:
        rows = [pair for two in _neighbours(found) for pair, _ in tokenizer.pairs(two[0], two[1:], shape.max_tokens)]
    return TextNetwork(shape, read_weights(files, shape), rows[0::2], rows[1::2], gate=gate, threads=threads)


def _neighbours(found: Sequence[str]) -> list[tuple[str, str]]:
    """Sentences that belong together and such that do not, in turn by two."""
    apart = len(found) // 2
    steps = (1, 1, apart, apart)
    return [(it, found[(at + steps[at % 4]) % len(found)]) for at, it in enumerate(found[: 2 * SENTENCES])]


def sentences(text: str) -> list[str]:
    """Sentences of prose, of ordinary length, in order, each once."""
    found = (it.strip() for paragraph in text.split("\n\n") for it in _END.split(" ".join(paragraph.split())))
    return list(dict.fromkeys(it for it in found if _SHORTEST <= len(it) <= _LONGEST))


def _units(shape: EncoderShape) -> list[tuple[str, ...]]:
    """One kind of group in a few layers that follow each other."""
    step = -(-shape.layers * len(PARTS) // _UNITS)
    return [
        tuple(f"{layer}.{part}" for layer in range(first, min(first + step, shape.layers)))
        for first in range(0, shape.layers, step)
        for part in PARTS
    ]
