"""The models that a process serves, and the text interfaces they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from edgewise.core.errors import ConfigError, ModelNotFound
from edgewise.engine.api import Engine


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def add_bos(self) -> bool: ...

    @property
    def missing_bytes(self) -> frozenset[int]:
        """Bytes that the vocabulary cannot write; `encode` leaves them out."""

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of `text`; `parse_special` turns the written form of special tokens into their ids."""

    def token_bytes(self, id: int, /) -> bytes:
        """The bytes this token adds to the text; they need not be whole UTF-8 characters."""

    def token_text(self, id: int, /) -> str: ...

    def is_special(self, id: int, /) -> bool: ...

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class ChatTemplate(Protocol):
    """Messages to the text that the model was trained on."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Raises `TemplateFailed` when the template refuses the messages."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model that can be asked.

    Attributes:
        name, aliases: What callers may call it; answers carry `name`.
        template: None for a model without a chat template: it answers completions only.
        max_context: Largest prompt + answer in tokens.
        digest: "sha256:<hex>" of the model's manifest.
        created: Unix seconds, shown by /v1/models.
        sampling: Recommended values for fields of `pipeline.task.Sampling` that a request leaves out.
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    engine: Engine
    max_context: int
    digest: str
    created: int
    owned_by: str = "edgewise"
    aliases: tuple[str, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """The written form of every special token, the longest first."""
        tokenizer = self.tokenizer
        texts = {tokenizer.token_text(id) for id in range(tokenizer.vocab_size) if tokenizer.is_special(id)} - {""}
        return tuple(sorted(texts, key=len, reverse=True))

    @property
    def context(self) -> int:
        """The context that counts: the model's own, or the engine's where that is smaller."""
        info = self.engine.info
        return self.max_context if info is None else min(self.max_context, info.max_context)


class Models:
    """The served models by name and alias."""

    def __init__(self, served: Iterable[ServedModel]) -> None:
        self._served = tuple(served)
        self._by_name: dict[str, ServedModel] = {}
        for model in self._served:
            for name in (model.name, *model.aliases):
                if self._by_name.setdefault(name, model) is not model:
                    raise ConfigError(f"Two served models are called '{name}': give one of them another name.")

    def __repr__(self) -> str:
        return f"Models({', '.join(model.name for model in self._served)})"

    def all(self) -> tuple[ServedModel, ...]:
        return self._served

    async def open(self, name: str) -> ServedModel:
        """The model, ready to take a task; may wait for files to be read. Raises what `get` raises."""
        return self.get(name)

    def get(self, name: str) -> ServedModel:
        """Raises `ModelNotFound` (404, `model_not_found`) naming what exists."""
        model = self._by_name.get(name)
        if model is None:
            known = ", ".join(f"'{model.name}'" for model in self._served) or "none"
            shown = name if len(name) <= 100 else name[:100] + "..."
            raise ModelNotFound(f"The model '{shown}' does not exist here. Models served: {known}.", param="model")
        return model
