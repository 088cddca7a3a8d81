"""The face of a model: what of its files says how texts become tokens, without its weights."""

from __future__ import annotations

from typing import Final

from edgewise.models.files import ModelFiles
from edgewise.models.sampling import GENERATION_CONFIG
from edgewise.models.small_files import read_bytes
from edgewise.models.weights.gguf import gguf_file, header_of

MAX_BYTES: Final = 64 * 1024**2

_NAMES: Final = frozenset(
    {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "config.json",
        "chat_template.json",
        "chat_template.jinja",
        GENERATION_CONFIG,
    }
)
_TEMPLATES: Final = "additional_chat_templates/"


def face_files(files: ModelFiles) -> dict[str, bytes]:
    """Contents by logical name. They make a model of the same format, of which tokenizer and chat template can be loaded.

    Raises:
        BadModelFile: A damaged file, or one larger than `MAX_BYTES`.
        StorageError: One cannot be read.
    """
    if files.format == "gguf":
        name, _ = gguf_file(files)
        return {name: header_of(files).without_tensors()}
    return {
        name: read_bytes(path, name, most=MAX_BYTES)
        for name, path in files.paths.items()
        if name in _NAMES or name.startswith(_TEMPLATES)
    }
