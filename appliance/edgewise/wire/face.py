"""What a device needs of a model to speak with it without having it: tokenizer, chat template, recommendations. No weights.

GET FACES/{digest}              Face
GET FACES/{digest}/{sha256}     bytes of one of its files
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from edgewise.wire.http import CLOUD
from edgewise.wire.messages import Digest, Message, Sha256

FACES: Final = f"{CLOUD}/faces"
MAX_FILE_BYTES: Final = 64 * 1024**2
"""Of one file; the largest vocabularies take about 30 MB."""


class FaceFile(Message):
    """`name` is the file's logical name in the model, such as "tokenizer.json"."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,200}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,200})?$")]
    sha256: Sha256
    bytes: Annotated[NonNegativeInt, Field(le=MAX_FILE_BYTES)]


class Face(Message):
    """Attributes:
    digest: Of the model whose face it is.
    context: Largest prompt + answer in tokens.
    created: Unix seconds of its installation.
    sampling: What its makers recommend (`models.sampling`).
    """

    v: Literal[1] = 1
    model: str = Field(min_length=1, max_length=200)
    digest: Digest
    format: Literal["gguf", "safetensors"]
    context: PositiveInt
    created: NonNegativeInt = 0
    sampling: dict[str, float] = Field(default_factory=dict)
    files: tuple[FaceFile, ...] = Field(min_length=1, max_length=64)


def face_path(digest: str, sha256: str = "") -> str:
    return f"{FACES}/{digest}" + (f"/{sha256}" if sha256 else "")
