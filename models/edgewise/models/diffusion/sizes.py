"""How much memory a picture model takes, from its headers alone. Imports no torch."""

from __future__ import annotations

import json
import math
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from edgewise.core.errors import UnsupportedModel
from edgewise.models.files import ModelFiles
from edgewise.models.importing import PIPELINE
from edgewise.models.small_files import read_object
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.safetensors_header import parse_safetensors_header

_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_FIXED: Final = 32 << 20  # code, caches of kernels, prompts
_DECODER_CHANNELS: Final = 128 * 4  # values alive for one pixel in the widest place of a usual image decoder
_GUIDED: Final = 2  # with guidance each picture is computed twice


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSizes:
    """Bytes.

    Attributes:
        weights: Of all parts, in the type that is computed in.
        weights_wide: The same in float32.
        workspace: Whatever is drawn.
        per_pixel: Of one picture while it is drawn, for each of its pixels.
        largest: Pixels of the picture that the model was trained for.
    """

    weights: int
    weights_wide: int
    workspace: int
    per_pixel: int
    largest: int

    def picture(self, width: int, height: int) -> int:
        """Bytes of one picture while it is drawn."""
        return width * height * self.per_pixel

    @property
    def minimal(self) -> int:
        """With room for one picture."""
        return self.weights + self.workspace + self.largest * self.per_pixel


def picture_sizes(files: ModelFiles, dtype: str) -> PictureSizes:
    """Sizes of a picture model whose weights become `dtype`.

    Raises:
        BadModelFile: A header is damaged.
        UnsupportedModel: It is no picture model that is known here.
    """
    elements = sum(_elements(files, name) for name in files.paths if name.endswith(".safetensors"))
    per_pixel, side = _pipeline(files, dtype) if PIPELINE in files.paths else _starter(files, dtype)
    return PictureSizes(
        weights=elements * _BYTES[dtype],
        weights_wide=elements * 4,
        workspace=_FIXED,
        per_pixel=per_pixel,
        largest=side * side,
    )


def _elements(files: ModelFiles, name: str) -> int:
    with closing(RangeFile(files.paths[name], name)) as file:
        return sum(math.prod(tensor.shape) for tensor in parse_safetensors_header(file).values())


def _starter(files: ModelFiles, dtype: str) -> tuple[int, int]:
    try:
        config = read_object(files.paths["config.json"], "config.json")
        side, patch, width, hidden = (int(config[key]) for key in ("size", "patch", "width", "hidden"))
        heads = int(config["heads"])
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedModel(
            f"{files.name} is no picture model that is known here: it has neither {PIPELINE} nor the sizes of a starter picture "
            f"model in config.json ({error})."
        ) from error
    tokens = (side // patch) ** 2
    values = tokens * (8 * width + 3 * hidden) + heads * tokens * tokens
    return max(64, _GUIDED * values * _BYTES[dtype] // (side * side)), side


def _pipeline(files: ModelFiles, dtype: str) -> tuple[int, int]:
    part = next((name for name in ("transformer/config.json", "unet/config.json") if name in files.paths), None)
    if part is None or "vae/config.json" not in files.paths:
        raise UnsupportedModel(f"{files.name}: {PIPELINE} is there, but no transformer or unet with a vae beside it.")
    vae = read_object(files.paths["vae/config.json"], "vae/config.json")
    channels = vae.get("block_out_channels")
    if channels is None and isinstance(vae.get("dim_mult"), list):  # one of films, as Qwen-Image has it
        channels = [int(vae.get("base_dim") or 0) * int(factor) for factor in vae["dim_mult"]]
    widest = int(channels[0]) * 4 if isinstance(channels, list) and channels else _DECODER_CHANNELS
    scale = 2 ** (len(channels) - 1) if isinstance(channels, list) else 8
    sample = read_object(files.paths[part], part).get("sample_size") or 128
    side = int(sample if isinstance(sample, int) else json.loads(str(sample))[0]) * scale
    return widest * _BYTES[dtype], side
