"""The families of models that see: which layout and which encoder belong to an architecture. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from edgewise.models.decoder.config import CONFIG_NAME, MAX_CONFIG_BYTES
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal import qwen
from edgewise.models.multimodal.layout import Layout
from edgewise.models.small_files import read_object


@dataclass(frozen=True, slots=True)
class Family:
    """Attributes:
    layout: From the configuration and the files.
    """

    layout: Callable[[Fields, ModelFiles], Layout]


FAMILIES: Final[Mapping[str, Family]] = {
    "Qwen2VLForConditionalGeneration": Family(qwen.read_layout),
    "Qwen2_5_VLForConditionalGeneration": Family(qwen.read_layout),
}
"""By the name of the class in config.json."""


def read_layout(files: ModelFiles) -> Layout | None:
    """How this model takes media; None where it takes none.

    Raises:
        BadModelFile: The configuration or the preprocessor's is damaged.
    """
    if CONFIG_NAME not in files.paths:
        return None
    config = Fields(read_object(files.paths[CONFIG_NAME], CONFIG_NAME, most=MAX_CONFIG_BYTES), CONFIG_NAME)
    named = config.get("architectures")
    family = FAMILIES.get(named[0]) if isinstance(named, list) and len(named) == 1 else None
    return None if family is None else family.layout(config, files)
