"""The bodies of /v1/embeddings as OpenAI's document has it, and of /v1/rerank as Cohere and Jina have it, plus our extensions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from edgewise.api.keep_alive import KeepAlive
from edgewise.api.schemas import MAX_TIMEOUT_S, prompts
from edgewise.core.errors import InvalidRequest

MAX_TEXTS = 2048
"""Inputs or documents of one request, as OpenAI has it."""

IGNORED = frozenset({"user"})
EXTENSIONS = ("keep_alive", "timeout", "truncate")


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    model: str | None = None
    truncate: bool | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None
    keep_alive: KeepAlive = None


class EmbeddingsBody(_Body):
    """POST /v1/embeddings. `null` means "not given" everywhere."""

    input: Annotated[Any, BeforeValidator(prompts), Field(json_schema_extra={"type": ["string", "array"]})]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: Any = None


class DocumentBody(BaseModel):
    """A document in its long form."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str


class RerankBody(_Body):
    """POST /v1/rerank."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | DocumentBody], Field(min_length=1, max_length=MAX_TEXTS)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(it if isinstance(it, str) else it.text for it in self.documents)


def check_count(count: int) -> None:
    """Raises `InvalidRequest` if there are too many inputs."""
    if count > MAX_TEXTS:
        raise InvalidRequest(f"'input' has {count} texts: at most {MAX_TEXTS} are allowed.", param="input")
