"""What a vision tower expects of colours, from a model's preprocessor_config.json. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object

PREPROCESSOR: Final = "preprocessor_config.json"
_PROCESSOR: Final = "processor_config.json"
_FILM_PREPROCESSOR: Final = "video_preprocessor_config.json"
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Colours:
    """A channel's value, 0 to 1, is taken as (value - mean) / deviation."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]


CLIP: Final = Colours((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF: Final = Colours((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def picture_options(files: ModelFiles) -> Fields:
    """How the model's own processor treats pictures; empty where it does not say.

    Raises:
        BadModelFile: A file that is no JSON object.
    """
    return _options(files, PREPROCESSOR, "image_processor")


def film_options(files: ModelFiles) -> Fields:
    """How it treats film; raises as `picture_options`."""
    return _options(files, _FILM_PREPROCESSOR, "video_processor")


def _options(files: ModelFiles, name: str, part: str) -> Fields:
    """A file of its own, or in newer folders a part of the file of all processors."""
    path = files.paths.get(name)
    if path is not None:
        return Fields(read_object(path, name, most=_MAX_BYTES), name)
    path = files.paths.get(_PROCESSOR)
    if path is None:
        return Fields({}, name)
    found = read_object(path, _PROCESSOR, most=_MAX_BYTES).get(part)
    return Fields(found if isinstance(found, Mapping) else {}, _PROCESSOR)


def colours(options: Fields, default: Colours) -> Colours:
    return Colours(_three(options, "image_mean", default.mean), _three(options, "image_std", default.deviation))


def _three(options: Fields, key: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
    if options.get(key) is None:
        return default
    first, second, third = options.positives(key, 3)
    return first, second, third


def edge_options(options: Fields) -> Mapping[str, Any]:
    """The object "size", or nothing."""
    size = options.get("size")
    return size if isinstance(size, Mapping) else {}
