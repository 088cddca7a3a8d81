"""Texts to the token ids that an encoder was trained on, as its tokenizer.json says, special tokens included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.encoders.shape import EncoderShape, read_shape
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_bytes

_FILE = "tokenizer.json"


class EncoderTokenizer:
    """Whole texts only: what is too long is told, never cut here."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._backend.no_truncation()  # the file's own limits are those of its training
        self._backend.no_padding()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text. Uses all cores; call it in a thread."""
        return [list(found.ids) for found in self._backend.encode_batch(list(texts))]

    @property
    def specials(self) -> int:
        """Tokens that are added to every text."""
        return int(self._backend.num_special_tokens_to_add(False))

    def shorten(self, ids: Sequence[int], most: int) -> list[int]:
        """At most `most` tokens: the end of the text is dropped, the special token behind it is kept."""
        if len(ids) <= most:
            return list(ids)
        behind = 1 if self.specials > 1 else 0
        return [*ids[: most - behind], *ids[len(ids) - behind :]]


@dataclass(frozen=True, slots=True)
class TextFace:
    """What the service needs to know of an encoder of texts, without its weights."""

    tokenizer: EncoderTokenizer
    shape: EncoderShape


def load_face(files: ModelFiles) -> TextFace:
    """Raises as `read_shape` and `load_tokenizer`."""
    return TextFace(load_tokenizer(files), read_shape(files))


def load_tokenizer(files: ModelFiles) -> EncoderTokenizer:
    """The tokenizer of an encoder's folder.

    Raises:
        UnsupportedModel: There is no tokenizer.json.
        BadModelFile: It is damaged.
    """
    path = files.paths.get(_FILE)
    if path is None:
        raise UnsupportedModel(f"{files.name}: the model has no {_FILE}; other tokenizer files are not supported.")
    try:
        backend = tokenizers.Tokenizer.from_buffer(read_bytes(path, _FILE))
    except Exception as error:  # the library raises bare Exception
        raise BadModelFile(f"{files.name}, {_FILE}: {error}") from error
    return EncoderTokenizer(backend)
