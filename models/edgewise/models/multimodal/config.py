"""What the engine must know of a model that sees or hears. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgewise.models.decoder.config import CONFIG_NAME, DecoderConfig
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.families import Family, family_of
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.weights.stored import elements, stored_tensors

# Keys beside text_config that hold for the decoder.
_OUTER_KEYS = ("tie_word_embeddings", "quantization_config", "compression_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalConfig:
    """A decoder, and an encoder of the media in its prompts.

    Attributes:
        text: The decoder.
        kinds: Media that prompts may hold.
        tower_elements: Parameters that are not the decoder's; they are loaded in the decoder's dtype.
        tower_workspace: Upper bound of the bytes that encoding one medium allocates.
        encoder: See `Family.encoder`.
        other: See `Family.other`.
        speaks: See `Family.speaks`.
    """

    text: DecoderConfig
    kinds: tuple[MediaKind, ...]
    tower_elements: int
    tower_workspace: int
    encoder: str
    other: str
    speaks: bool = False

    @property
    def architecture(self) -> str:
        return self.text.architecture

    @property
    def vocab_size(self) -> int:
        return self.text.vocab_size

    @property
    def max_position(self) -> int:
        return self.text.max_position

    @property
    def num_layers(self) -> int:
        return self.text.num_layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.text.windows

    @property
    def cache_variant(self) -> str:
        """See `DecoderConfig.cache_variant`."""
        return self.text.cache_variant

    def served(self, context: int | None) -> MultimodalConfig:
        """See `DecoderConfig.served`."""
        return replace(self, text=self.text.served(context))


def read_multimodal(files: ModelFiles) -> MultimodalConfig | None:
    """The configuration of a model that sees or hears; None for one that does not, or that the engine runs without.

    Raises:
        UnsupportedModel, BadModelFile, StorageError: As `decoder.config.read_config`.
    """
    found = family_of(files)
    if found is None or not found[0].encoder:
        return None
    family, config = found
    other = re.compile(family.other)
    return MultimodalConfig(
        text=DecoderConfig.from_hf(_text(config, family), name=CONFIG_NAME),
        kinds=tuple(family.layout(config, files).markers),
        tower_elements=sum(elements(tensor) for tensor in stored_tensors(files) if other.fullmatch(tensor.name)),
        tower_workspace=0 if family.workspace is None else family.workspace(config),
        encoder=family.encoder,
        other=family.other,
        speaks=family.speaks,
    )


def _text(config: Fields, family: Family) -> Mapping[str, Any]:
    """The decoder's part, as the config.json of a model that is nothing else."""
    whole = Fields(config.get(family.inner, {}), config.where) if family.inner else config
    own = whole.get("text_config", whole.values)
    if not isinstance(own, Mapping):
        raise config.bad("text_config", "an object")
    kind = family.text_type or own.get("model_type", "llama")
    outer = {key: whole.values[key] for key in _OUTER_KEYS if key in whole.values}
    inner = {key: value for key, value in own.items() if key != "architectures" and value is not None}
    return {**family.text_defaults.get(kind, {}), **outer, **inner, "model_type": kind}
