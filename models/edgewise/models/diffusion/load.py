"""From a model's files to something that draws. Imported in engine processes only: it brings torch with it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from edgewise.core.errors import UnsupportedModel
from edgewise.models.diffusion.protocol import PictureModel
from edgewise.models.diffusion.starter.files import FILES, is_starter, load_starter
from edgewise.models.files import ModelFiles
from edgewise.models.importing import PIPELINE

_DIFFUSERS = "edgewise.models.diffusion.diffusers_model"


@dataclass(frozen=True, slots=True)
class LoadedPictures:
    """Attributes:
    model: Ready to draw.
    widen: Makes the same model compute in float32; the former must not be used after that. None where it does already.
    """

    model: PictureModel
    widen: Callable[[], PictureModel] | None


def load_pictures(
    files: ModelFiles,
    *,
    device: torch.device,
    dtype: torch.dtype,
    offload: bool = False,
    cut: Callable[[], None] | None = None,
) -> LoadedPictures:
    """A picture model by what its folder says of itself: a starter picture model, or a pipeline of diffusers.

    Args:
        offload: Keep parts that are not at work in host memory (pipelines of diffusers on a GPU).
        cut: Called where the device may be given to others inside of a call of the model, beside where a step yields.

    Raises:
        UnsupportedModel: Neither, or of a kind that is not known.
        BadModelFile: A file is missing or damaged.
    """

    def load(kind: torch.dtype) -> PictureModel:
        if is_starter(files):
            return load_starter(files, device=device, dtype=kind)
        if PIPELINE in files.paths:
            # diffusers and transformers take seconds and hundreds of megabytes to import.
            made: PictureModel = importlib.import_module(_DIFFUSERS).load_pipeline(
                files, device=device, dtype=kind, offload=offload, cut=cut
            )
            return made
        raise UnsupportedModel(
            f"{files.name} is no picture model that is known here: neither {PIPELINE} nor all of {', '.join(FILES)}."
        )

    return LoadedPictures(load(dtype), None if dtype == torch.float32 else lambda: load(torch.float32))
