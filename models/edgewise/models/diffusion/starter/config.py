"""Sizes of a starter picture model, and how it is best sampled: the part of its config.json that is not quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from edgewise.core.errors import BadModelFile

MODEL_TYPE: Final = "edgewise-starter-pictures"


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterConfig:
    """A transformer on pixels.

    Attributes:
        size: Width and height of its pictures, pixels.
        patch: Side of the square of pixels that makes one token.
        width, depth, heads: Of the transformer.
        hidden: Inner width of its feed-forward parts.
        smooth: Channels of the convolutions that smooth the seams between patches; 0 for none.
        text_width, text_tokens: Of the states of the prompt that it reads; longer prompts are cut.
        text_heads: Of the encoder that makes them; its other sizes are those of its tensors.
        steps, guidance: What is used where a request names none.
        shift: How far the steps crowd at the noisy end; 1 spreads them evenly (Esser et al. 2024, section 5.3.2).
    """

    size: int = 128
    patch: int = 8
    width: int = 384
    depth: int = 12
    heads: int = 6
    hidden: int = 1024
    smooth: int = 24
    text_width: int = 384
    text_tokens: int = 24
    text_heads: int = 12
    steps: int = 12
    guidance: float = 3.0
    shift: float = 1.0

    def __post_init__(self) -> None:
        whole = (
            "size",
            "patch",
            "width",
            "depth",
            "heads",
            "hidden",
            "text_width",
            "text_tokens",
            "text_heads",
            "steps",
        )
        for name in whole:
            if type(getattr(self, name)) is not int or not 1 <= getattr(self, name) <= 1 << 16:
                raise ValueError(f"{name!r} must be a whole number from 1 to 65536")
        if type(self.smooth) is not int or not 0 <= self.smooth <= 4096:
            raise ValueError("'smooth' must be a whole number from 0 to 4096")
        if self.size % self.patch or self.width % (4 * self.heads):
            raise ValueError("'size' must be a multiple of 'patch', and 'width' of four times 'heads'")
        if not 1 <= float(self.guidance) <= 20 or not 0.1 <= float(self.shift) <= 20:
            raise ValueError("'guidance' must lie in [1, 20] and 'shift' in [0.1, 20]")

    @property
    def side(self) -> int:
        """Patches along each side."""
        return self.size // self.patch

    def to_json(self) -> dict[str, Any]:
        """What `config.json` says of it; `read_config` reads it back."""
        return {"model_type": MODEL_TYPE, **asdict(self)}


def read_config(values: Mapping[str, Any], where: str) -> StarterConfig:
    """The configuration in the object of a config.json called `where`.

    Raises:
        BadModelFile: It is of another kind of model, or a value is missing or impossible.
    """
    if values.get("model_type") != MODEL_TYPE:
        raise BadModelFile(f"{where}: 'model_type' is {values.get('model_type')!r}, not {MODEL_TYPE!r}.")
    try:
        return StarterConfig(**{name: values[name] for name in StarterConfig.__dataclass_fields__})
    except KeyError as error:
        raise BadModelFile(f"{where}: {error} is missing.") from error
    except (TypeError, ValueError) as error:
        raise BadModelFile(f"{where}: {error}.") from error
