"""A model that writes what is said, as far as it can be asked."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.engine.api import Engine
from edgewise.models.tokenizer import Tokenizer
from edgewise.models.whisper.config import WhisperConfig, WhisperTokens


@dataclass(frozen=True, kw_only=True)
class ServedListener:
    """One model that writes what is said; the attributes are those of `pipeline.model.ServedModel`.

    Attributes:
        config, tokens: Its sizes and control tokens.
    """

    name: str
    engine: Engine
    tokenizer: Tokenizer
    config: WhisperConfig
    tokens: WhisperTokens
    digest: str
    created: int
    owned_by: str = "edgewise"
    aliases: tuple[str, ...] = ()
    here: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """What callers may call it."""
        return (self.name, *self.aliases)
