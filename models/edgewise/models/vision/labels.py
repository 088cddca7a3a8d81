"""Labels of a picture: the classes of ImageNet (ILSVRC 2012) with their names in WordNet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from edgewise.core.errors import BadModelFile
from edgewise.models.vision.network import Floats, Network

CHECKPOINT: Final = "efficientnet-lite0.pth"
SYNSETS: Final = "imagenet_synsets.txt"
LEMMAS: Final = "imagenet_synset_to_lemma.txt"
_CROP: Final = 0.875
_MEAN, _SPREAD = 127.0, 128.0


@dataclass(frozen=True, slots=True)
class Label:
    """What a picture may show.

    Attributes:
        name: The first of the class's names.
        names: All of them, e.g. "tiger cat" or "espresso".
        synset: Its id in WordNet 3.0, e.g. "n02123159".
        score: Probability, 0 to 1.
    """

    name: str
    names: str
    synset: str
    score: float


@dataclass(frozen=True)
class Labeller:
    """`network`: to logits [n, classes]; `classes`: synset and names of each of them; `side`: of its pictures, in pixels."""

    network: Network
    classes: Sequence[tuple[str, str]]
    side: int

    def label(self, picture: Image.Image, top: int = 5) -> list[Label]:
        """The likeliest classes of an RGB picture, of which the middle is looked at."""
        return self.label_squares([self.square(picture)], [top])[0]

    def square(self, picture: Image.Image) -> Image.Image:
        """[side, side] pixels: seven eighths of the middle square, as the network was judged with."""
        return ImageOps.fit(picture, (self.side, self.side), Image.Resampling.BICUBIC, bleed=(1 - _CROP) / 2)

    def label_squares(self, squares: Sequence[Image.Image], tops: Sequence[int]) -> list[list[Label]]:
        """As `label`, of what `square` gave, computed together; `tops` says how many labels of each."""
        logits = self.network(np.concatenate([pixels(square) for square in squares])).astype(np.float64)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = odds / odds.sum(axis=1, keepdims=True)
        return [self._likeliest(row, top) for row, top in zip(scores, tops, strict=True)]

    def _likeliest(self, scores: npt.NDArray[np.float64], top: int) -> list[Label]:
        best = np.argsort(-scores, kind="stable")[:top]
        return [
            Label(names.split(",")[0], names, synset, float(scores[index]))
            for index in best.tolist()
            for synset, names in (self.classes[index],)
        ]


def pixels(square: Image.Image) -> Floats:
    """What the network reads of an RGB picture: [1, 3, height, width]."""
    numbers = (np.asarray(square, dtype=np.float32) - _MEAN) / _SPREAD
    return np.ascontiguousarray(numbers.transpose(2, 0, 1))[np.newaxis]


def read_classes(synsets: Path, lemmas: Path) -> list[tuple[str, str]]:
    """Synset and names of each class, in the order of the network's outputs.

    Raises:
        BadModelFile: A class has no name.
    """
    names = dict(line.split("\t", 1) for line in lemmas.read_text("utf-8").splitlines() if "\t" in line)
    order = synsets.read_text("utf-8").split()
    missing = next((synset for synset in order if synset not in names), None)
    if missing is not None:
        raise BadModelFile(f"{lemmas.name} has no name for {missing}: pull the model again.")
    return [(synset, names[synset]) for synset in order]
