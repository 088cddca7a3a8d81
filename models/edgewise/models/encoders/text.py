"""Texts to the token ids that an encoder was trained on, as its tokenizer.json says, special tokens included."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.encoders.rows import Pair
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

    def pairs(self, first: str, seconds: Sequence[str], most: int) -> list[tuple[Pair, bool]]:
        """The first text with each of the others in one row, and whether the row would have more than `most` tokens.

        What is too long loses tokens from the end of the longer text, then of both alike, as sentence-transformers' CrossEncoder
        does it ("longest_first" of tokenizers). Uses all cores; call it in a thread.
        """
        room = max(0, most - int(self._backend.num_special_tokens_to_add(True)))
        asked = self._backend.encode(first, add_special_tokens=False)
        found = []
        for second in self._backend.encode_batch(list(seconds), add_special_tokens=False):
            long = len(asked.ids) + len(second.ids) > room
            query = asked
            if long:
                one, other = _longest_first(len(asked.ids), len(second.ids), room)
                query = copy.deepcopy(asked)
                query.truncate(one)
                second.truncate(other)
            row = self._backend.post_process(query, second, True)
            begin = row.type_ids.index(1) if 1 in row.type_ids else len(row.ids)
            found.append((Pair(tuple(row.ids), begin), long))
        return found


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens that are left of two texts: the longer is cut to what the shorter leaves, or both to half."""
    short = min(first, second, room // 2)
    long = room - short
    return (short, long) if first <= second else (long, short)


@dataclass(frozen=True, slots=True)
class TextFace:
    """What the service needs to know of an encoder of texts, without its weights."""

    tokenizer: EncoderTokenizer
    shape: EncoderShape


def load_face(files: ModelFiles, role: str = "embeddings") -> TextFace:
    """Raises as `shape_for` and `load_tokenizer`."""
    return TextFace(load_tokenizer(files), shape_for(files, role))


def shape_for(files: ModelFiles, role: str) -> EncoderShape:
    """The shape of a model for `role`: "embeddings", or "rerank" for a cross-encoder.

    Raises:
        UnsupportedModel: It is one of the other role; and as `read_shape`.
        BadModelFile: As `read_shape`.
    """
    shape = read_shape(files)
    if (shape.head is not None) == (role == "rerank"):
        return shape
    if shape.head is not None:
        raise UnsupportedModel(
            f"{files.name} is a cross-encoder: it scores pairs of texts and gives no vectors. Install it for the role rerank."
        )
    raise UnsupportedModel(
        f"{files.name} is no cross-encoder: it gives vectors, by which it can rank too. Install it for the role embeddings."
    )


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
