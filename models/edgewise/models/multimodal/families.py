"""The families of models that see: which layout and which encoder belong to an architecture. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from edgewise.models.decoder.config import CONFIG_NAME, MAX_CONFIG_BYTES
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal import gemma3, idefics3, llava, qwen, qwen2_audio
from edgewise.models.multimodal.layout import Layout
from edgewise.models.omni import layout as omni
from edgewise.models.small_files import read_object


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How models of one class are read.

    Attributes:
        layout: From the configuration and the files.
        encoder: "module:function" that loads what it sees with, a `multimodal.loading.EncoderLoader`. Empty where the engine
            cannot run the family.
        other: Names of tensors that are not the decoder's, a regular expression.
        workspace: Upper bound of the bytes that encoding one medium allocates beside weights and result, by the configuration.
        text_type: Model type of the decoder, where text_config does not say it as `models.decoder` knows it.
        text_defaults: What transformers takes for keys that text_config lacks, by model type.
        inner: Name of the object in which text_config lies; empty where it is the whole configuration.
        speaks: Whether it answers in sound as well (`models.omni`).
    """

    layout: Callable[[Fields, ModelFiles], Layout]
    encoder: str = ""
    other: str = ""
    workspace: Callable[[Fields], int] | None = None
    text_type: str | None = None
    text_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    inner: str = ""
    speaks: bool = False


_LLAVA: Final = Family(
    layout=llava.read_layout,
    encoder="edgewise.models.multimodal.towers.llava:load_encoder",
    other=r"(model\.)?(vision_tower|multi_modal_projector)\..+|(model\.)?image_newline",
    workspace=llava.workspace,
    text_defaults=llava.TEXT_DEFAULTS,
)

_QWEN: Final = Family(
    layout=qwen.read_layout,
    encoder="edgewise.models.multimodal.towers.qwen:load_encoder",
    other=r"(model\.)?visual\..+",
    workspace=qwen.workspace,
    text_type="qwen2",
    text_defaults=qwen.TEXT_DEFAULTS,
)
_GEMMA3: Final = Family(
    layout=gemma3.read_layout,
    encoder="edgewise.models.multimodal.towers.gemma3:load_encoder",
    other=r"(model\.)?(vision_tower|multi_modal_projector)\..+",
    workspace=gemma3.workspace,
)
_IDEFICS3: Final = Family(
    layout=idefics3.read_layout,
    encoder="edgewise.models.multimodal.towers.idefics3:load_encoder",
    other=r"(model\.)?(vision_model|connector)\..+",
    workspace=idefics3.workspace,
)

_OMNI: Final = Family(
    layout=omni.read_layout,
    encoder="edgewise.models.omni.senses:load_encoder",
    other=r"thinker\.(audio_tower|visual)\..+|talker\..+|token2wav\..+",
    workspace=omni.workspace,
    text_type="qwen2",
    text_defaults=omni.TEXT_DEFAULTS,
    inner="thinker_config",
    speaks=True,
)

_QWEN2_AUDIO: Final = Family(
    layout=qwen2_audio.read_layout,
    encoder="edgewise.models.multimodal.towers.audio:load_encoder",
    other=r"(model\.)?(audio_tower|multi_modal_projector)\..+",
    workspace=qwen2_audio.workspace,
    text_defaults=qwen2_audio.TEXT_DEFAULTS,
)

FAMILIES: Final[Mapping[str, Family]] = {
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Idefics3ForConditionalGeneration": _IDEFICS3,
    "LlavaForConditionalGeneration": _LLAVA,
    "LlavaNextForConditionalGeneration": _LLAVA,
    "Qwen2AudioForConditionalGeneration": _QWEN2_AUDIO,
    "Qwen2VLForConditionalGeneration": _QWEN,
    "Qwen2_5_VLForConditionalGeneration": _QWEN,
    "Qwen2_5OmniForConditionalGeneration": _OMNI,
    "Qwen2_5OmniModel": _OMNI,
    "SmolVLMForConditionalGeneration": _IDEFICS3,
}
"""By the name of the class in config.json."""


def read_layout(files: ModelFiles) -> Layout | None:
    """How this model takes media; None where it takes none.

    Raises:
        BadModelFile: The configuration or the preprocessor's is damaged.
    """
    found = family_of(files)
    if found is None:
        return None
    family, config = found
    return family.layout(config, files)


def family_of(files: ModelFiles) -> tuple[Family, Fields] | None:
    """The family of a model and its config.json; None for one that neither sees nor hears.

    Raises:
        BadModelFile: config.json is damaged.
        StorageError: It cannot be read.
    """
    if files.format != "safetensors" or CONFIG_NAME not in files.paths:
        return None
    config = Fields(read_object(files.paths[CONFIG_NAME], CONFIG_NAME, most=MAX_CONFIG_BYTES), CONFIG_NAME)
    named = config.get("architectures")
    family = FAMILIES.get(named[0]) if isinstance(named, list) and len(named) == 1 else None
    return None if family is None else (family, config)
