"""EfficientNet-lite0 for an engine process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from edgewise.models.files import ModelFiles
from edgewise.models.vision.efficientnet import SIDE, efficientnet_lite0, read_checkpoint
from edgewise.models.vision.encoders import PictureEncoder, Seen, Session, numeric_class, path_of
from edgewise.models.vision.labels import CHECKPOINT, LEMMAS, SYNSETS, Labeller, read_classes


def load_labeller(files: ModelFiles, threads: int) -> tuple[PictureEncoder, str]:
    """EfficientNet-lite0, and its numeric class.

    Raises:
        BadModelFile: A file is missing or damaged.
    """
    graph = efficientnet_lite0(read_checkpoint(path_of(files, CHECKPOINT)))
    classes = read_classes(path_of(files, SYNSETS), path_of(files, LEMMAS))
    labeller = Labeller(Session(graph, threads), classes, SIDE)

    def look(seen: Seen) -> Mapping[str, Any]:
        top = int(seen.options.get("top", 5))
        return {"labels": [asdict(label) for label in labeller.label_square(seen.picture, top)]}

    return PictureEncoder(labeller.square, look), numeric_class()
