"""What a Hugging Face config.json alone says of a model that transformers is to run. Imports neither torch nor transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.decoder.config import CONFIG_NAME, MAX_CONFIG_BYTES
from edgewise.models.decoder.hf_fields import is_implemented
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object
from edgewise.models.weights.quantization import parse_quantization

# Names of the longest context, most usual first.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")
_MAX_CONTEXT = 1 << 24


@dataclass(frozen=True, slots=True)
class Outline:
    """Class name and longest context of a model, and its whole config.json."""

    architecture: str
    max_position: int
    config: Mapping[str, Any]


def is_longtail(files: ModelFiles) -> bool:
    """Whether a model is none of the families that `models.decoder` implements, but may be one of transformers'.

    Raises:
        BadModelFile, StorageError: config.json cannot be read.
    """
    return files.format == "safetensors" and CONFIG_NAME in files.paths and not is_implemented(_read(files))


def read_outline(files: ModelFiles) -> Outline:
    """What config.json says.

    Raises:
        UnsupportedModel: Code of its own, an encoder, several or no classes, or a quantization that cannot be read, by name.
        BadModelFile: It names no context length, or an impossible one.
    """
    config = _read(files)
    if config.get("auto_map"):
        raise UnsupportedModel(f"{CONFIG_NAME}: 'auto_map' names code that comes with the model; it is never run.")
    if config.get("is_encoder_decoder"):
        raise UnsupportedModel(f"{CONFIG_NAME}: 'is_encoder_decoder' is true; this build serves decoders.")
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise UnsupportedModel(f"{CONFIG_NAME}: 'architectures' is {named!r}; it must name one class.")
    parse_quantization(config, CONFIG_NAME)
    return Outline(named[0], _max_position(config), config)


def require_transformers(architecture: str) -> None:
    """UnsupportedModel, with the remedy, where transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedModel(
            f"{CONFIG_NAME}: 'architectures' is {architecture!r}, which Edgewise does not implement itself and transformers "
            "is not installed: `pip install 'edgewise[transformers]'` lets it run such models."
        )


def _max_position(config: Mapping[str, Any]) -> int:
    inner = config.get("text_config")
    for holder in (config, inner if isinstance(inner, dict) else {}):
        for key in _CONTEXT_KEYS:
            value = holder.get(key)
            if value is None:
                continue
            if type(value) is not int or not 1 <= value <= _MAX_CONTEXT:
                raise BadModelFile(f"{CONFIG_NAME}: '{key}' is {value!r}; it must be from 1 to {_MAX_CONTEXT}.")
            return value
    raise BadModelFile(f"{CONFIG_NAME}: none of {', '.join(_CONTEXT_KEYS)} is there.")


def _read(files: ModelFiles) -> dict[str, Any]:
    return read_object(files.paths[CONFIG_NAME], CONFIG_NAME, most=MAX_CONFIG_BYTES)
