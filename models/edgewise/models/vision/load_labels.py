"""EfficientNet-lite0 for an engine process, and as the ladder of encoders climbs with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.models.encoders.build import CARD_BYTES
from edgewise.models.encoders.memory import climb_space
from edgewise.models.encoders.rung import Best, place_of
from edgewise.models.encoders.tensor_network import MANY, Samples, TensorNetwork, TensorSession
from edgewise.models.files import ModelFiles
from edgewise.models.vision.efficientnet import SIDE, efficientnet_lite0, read_checkpoint
from edgewise.models.vision.encoders import PictureEncoder, Seen, path_of
from edgewise.models.vision.labels import CHECKPOINT, LEMMAS, SYNSETS, Labeller, read_classes
from edgewise.models.vision.photos import CALIBRATION, JUDGED, inputs

if TYPE_CHECKING:
    from edgewise.models.encoders.card import CardSession


def load_labeller(files: ModelFiles, threads: int, **options: str) -> tuple[PictureEncoder, str]:
    """EfficientNet-lite0, and its numeric class.

    Args:
        options: As `models.encoders.rung.place_of` reads them; `samples` is a folder of photos.

    Raises:
        BadModelFile: A file is missing or damaged.
    """
    place = place_of(threads, options)
    best: Best[TensorSession | CardSession] = Best(
        place.order(files, "vision", climb_space("vision")),
        lambda: TensorSession(_graph(files), threads),
        lambda name, path: _opened(name, path, threads),
    )
    classes = read_classes(path_of(files, SYNSETS), path_of(files, LEMMAS))

    def look(pictures: Sequence[Seen]) -> list[Mapping[str, Any]]:
        rung = best.rung
        tops = [int(seen.options.get("top", 5)) for seen in pictures]
        found = Labeller(rung.session, classes, SIDE).label_squares([seen.picture for seen in pictures], tops)
        return [{"labels": [asdict(label) for label in labels], "precision": rung.precision} for labels in found]

    square = Labeller(best.rung.session, classes, SIDE).square
    return PictureEncoder(square, look, partial(best.climb, place.climb_bytes)), place.numeric_class


def labels_network(files: ModelFiles, samples: Path | None, gate: float, threads: int) -> TensorNetwork:
    """EfficientNet-lite0 for a climb; its photos are among its own files.

    Raises:
        BadModelFile: A file is missing or damaged.
    """
    del samples
    found = Samples(calibration=inputs(files, CALIBRATION), judged=inputs(files, JUDGED))
    return TensorNetwork(_graph(files), found, gate=gate, threads=threads)


def _opened(name: str, path: Path, threads: int) -> TensorSession | CardSession:
    if name.startswith(("cuda-", "tensorrt-")):
        # Here: it brings CUDA along.
        from edgewise.models.encoders.card import open_card

        return open_card(name, path, MANY, CARD_BYTES)
    return TensorSession(path, threads)


def _graph(files: ModelFiles) -> bytes:
    return efficientnet_lite0(read_checkpoint(path_of(files, CHECKPOINT)))
