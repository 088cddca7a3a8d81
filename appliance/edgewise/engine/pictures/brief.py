"""What a caller asked for, checked against what a model can draw, with every value set."""

from __future__ import annotations

import math

from edgewise.core.errors import InvalidRequest
from edgewise.engine.pictures.request import DiffuseParams, PictureInfo
from edgewise.models.diffusion.pictures import read_mask, read_pixels
from edgewise.models.diffusion.protocol import Brief

MAX_GUIDANCE = 50.0


def check_size(width: int, height: int, info: PictureInfo) -> None:
    """Raises `InvalidRequest` for a size off the model's grid, naming the grid."""
    least, most = info.sizes
    for side in (width, height):
        if side % info.grid or not least <= side <= most:
            what = (
                f"pictures of {least}x{least} pixels only"
                if least == most
                else f"sizes whose width and height are multiples of {info.grid} from {least} to {most} pixels"
            )
            best = "x".join(map(str, info.sizes_best))
            raise InvalidRequest(
                f"'size' is {width}x{height}: the model '{info.model}' draws {what}; best is {best}.", param="size"
            )


def brief_of(params: DiffuseParams, info: PictureInfo) -> Brief:
    """Raises `InvalidRequest`, naming the field."""
    width, height = params.width or info.sizes_best[0], params.height or info.sizes_best[1]
    check_size(width, height, info)
    steps = info.steps if params.steps is None else params.steps
    if not 1 <= steps <= info.max_steps:
        raise InvalidRequest(f"'steps' is {steps}: 1 to {info.max_steps} are possible here.", param="steps")
    guidance = info.guidance if params.guidance is None else params.guidance
    if not (math.isfinite(guidance) and 1.0 <= guidance <= MAX_GUIDANCE):
        raise InvalidRequest(f"'guidance' is {guidance}: 1 (off) to {MAX_GUIDANCE:g} are possible.", param="guidance")
    if params.negative_prompt and not info.negative:
        raise InvalidRequest(f"The model '{info.model}' knows no negative prompt.", param="negative_prompt")
    if params.image is not None and not info.edits:
        raise InvalidRequest(f"The model '{info.model}' cannot begin with a picture.", param="image")
    if params.mask is not None and params.image is None:
        raise InvalidRequest("'mask' says which part of 'image' is drawn anew: there is no 'image'.", param="mask")
    if not 0.0 <= params.cache <= 1.0:
        raise InvalidRequest(f"'step_cache' is {params.cache}: 0 (off) to 1.", param="step_cache")
    if not 0.0 < params.strength <= 1.0:
        raise InvalidRequest(f"'strength' is {params.strength}: above 0, at most 1.", param="strength")
    image = None if params.image is None else read_pixels(params.image, width, height)
    return Brief(
        prompt=params.prompt,
        negative_prompt=params.negative_prompt,
        width=width,
        height=height,
        steps=steps,
        guidance=guidance,
        seed=params.seed,
        start=0 if image is None else steps - max(1, round(steps * params.strength)),
        image=image,
        mask=None if params.mask is None else read_mask(params.mask, width, height),
        cache=params.cache,
    )
