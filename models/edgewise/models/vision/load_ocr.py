"""PaddleOCR's networks for an engine process; it loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edgewise.core.errors import BadModelFile
from edgewise.models.files import ModelFiles
from edgewise.models.vision.encoders import PictureEncoder, Seen, Session, numeric_class, path_of
from edgewise.models.vision.ocr import DETECTOR, DIRECTION, RECOGNIZER, Reader, character_list, scaled_down


def load_reader(files: ModelFiles, threads: int) -> tuple[PictureEncoder, str]:
    """PaddleOCR's networks, and their numeric class.

    Raises:
        BadModelFile: A file is missing or damaged.
    """
    detect, direction, recognize = (
        Session(path_of(files, name), threads) for name in (DETECTOR, DIRECTION, RECOGNIZER)
    )
    try:
        characters = character_list(recognize.metadata)
    except KeyError as error:
        raise BadModelFile(f"{files.name}: {RECOGNIZER} does not say which characters it reads.") from error
    reader = Reader(detect, direction, recognize, characters)

    def look(pictures: Sequence[Seen]) -> list[Mapping[str, Any]]:
        """One after the other: their sizes differ."""
        return [
            {"lines": [asdict(line) for line in reader.read(seen.picture, seen.picture.width / seen.width)]}
            for seen in pictures
        ]

    return PictureEncoder(scaled_down, look), numeric_class()
