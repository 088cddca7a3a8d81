"""Photos that an encoder of photos is calibrated and judged with.

They are those of scikit-image (`skimage.data`): in the public domain, CC0, or with no known restrictions. They come out of its
wheel with the model and lie in the store as its files; nothing of scikit-image is run.
"""

from __future__ import annotations

from typing import Final

from PIL import Image, ImageOps

from edgewise.core.errors import BadModelFile
from edgewise.models.files import ModelFiles
from edgewise.models.vision.efficientnet import SIDE
from edgewise.models.vision.labels import pixels
from edgewise.models.vision.network import Floats

CALIBRATION: Final = (
    "brick.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "hubble_deep_field.jpg",
    "rocket.jpg",
)
"""What ranges are found on."""
JUDGED: Final = ("astronaut.png", "camera.png", "chelsea.png", "clock_motion.png", "gravel.png")
"""What quality is judged on: other photographs than those."""
_EDGE: Final = 0.08
"""A closer view leaves so much of each edge away."""


def stored_name(photo: str) -> str:
    """Of a photo among a model's files."""
    return f"photo-{photo}"


def inputs(files: ModelFiles, photos: tuple[str, ...]) -> list[Floats]:
    """Squares of each photo from one end to the other, each as it is, and mirrored and closer: [1, 3, side, side].

    Raises:
        BadModelFile: One is missing or damaged.
    """
    found = []
    for name in photos:
        for square in _squares(_photo(files, name)):
            edge = round(square.width * _EDGE)
            closer = ImageOps.mirror(square.crop((edge, edge, square.width - edge, square.height - edge)))
            found += [pixels(it.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for it in (square, closer)]
    return found


def _photo(files: ModelFiles, name: str) -> Image.Image:
    path = files.paths.get(stored_name(name))
    if path is None:
        raise BadModelFile(f"{files.name} has no file {stored_name(name)}: pull the model again.")
    try:
        with Image.open(path) as photo:
            upright: Image.Image = photo.convert("RGB")
            return upright
    except OSError as error:
        raise BadModelFile(f"{files.name}: {stored_name(name)} cannot be read ({error}): pull it again.") from error


def _squares(photo: Image.Image) -> list[Image.Image]:
    """Two that cover the longer side from its ends; quarters of a square photo, at two corners."""
    side = min(photo.size) if photo.width != photo.height else photo.width // 2
    right, bottom = photo.width - side, photo.height - side
    return [photo.crop((0, 0, side, side)), photo.crop((right, bottom, right + side, bottom + side))]
