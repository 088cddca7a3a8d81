"""A served model of test doubles, and what is needed to ask it."""

from __future__ import annotations

from collections.abc import Sequence

from edgewise.engine.request import GenerateRequest
from edgewise.pipeline.model import ChatTemplate, ServedModel, Tokenizer
from tests.fakes.engine import FakeEngine, Script
from tests.fakes.text import EOS, ByteTokenizer, TagTemplate

DIGEST = "sha256:" + "ab" * 32


def fake_model(
    engine: FakeEngine | None = None,
    *,
    name: str = "tiny",
    aliases: tuple[str, ...] = (),
    tokenizer: Tokenizer | None = None,
    template: ChatTemplate | None = None,
    chat: bool = True,
    max_context: int = 4096,
) -> ServedModel:
    return ServedModel(
        name=name,
        aliases=aliases,
        tokenizer=tokenizer or ByteTokenizer(),
        template=(template or TagTemplate()) if chat else None,
        engine=engine or FakeEngine(),
        max_context=max_context,
        digest=DIGEST,
        created=1_800_000_000,
    )


def says(text: str, *, end: bool = True) -> Script:
    """Every request is answered with this text, byte by byte, and the end token."""

    def script(request: GenerateRequest) -> Sequence[int]:
        return [*text.encode(), *([EOS] if end else [])]

    return script
