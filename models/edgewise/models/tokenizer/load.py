"""Load the tokenizer of a model, whatever its format."""

from __future__ import annotations

from edgewise.models.files import ModelFiles
from edgewise.models.tokenizer.from_folder import tokenizer_from_folder
from edgewise.models.tokenizer.from_gguf import tokenizer_from_header
from edgewise.models.tokenizer.tokenizer import Tokenizer
from edgewise.models.weights.gguf import GGUFHeader, header_of


def load_tokenizer(files: ModelFiles, header: GGUFHeader | None = None) -> Tokenizer:
    """The model's tokenizer; `header` is that of a GGUF model where it has been read already.

    Raises:
        BadModelFile: A damaged file; the message names it.
        UnsupportedModel: A tokenizer that we do not know, by name.
        StorageError: A file cannot be read.
    """
    if files.format == "gguf":
        return tokenizer_from_header(header or header_of(files))
    return tokenizer_from_folder(files)
