"""Log probabilities in the two shapes of OpenAI's document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgewise.pipeline.model import Tokenizer
from edgewise.pipeline.text import ShownToken

UNLIKELY = -9999.0
"""OpenAI's stand-in for a probability too small to tell; JSON has no minus infinity."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[ShownToken]) -> dict[str, Any]:
    """`{"content": [...], "refusal": null}`, one entry per token, with its bytes.

    A special token has no bytes (null); the bytes of all others, joined, are the text.
    """
    content = []
    for token in tokens:
        assert token.logprobs is not None
        top = [_entry(tokenizer, id, logprob) for id, logprob in token.logprobs.top]
        content.append({**_entry(tokenizer, token.id, token.logprobs.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(tokenizer: Tokenizer, tokens: Iterable[ShownToken]) -> dict[str, Any]:
    """Four lists of one entry per token. `top_logprobs` holds the alternatives by text, the drawn token always among them."""
    text_offset, token_logprobs, names, top_logprobs = [], [], [], []
    for token in tokens:
        assert token.logprobs is not None
        name = _name(tokenizer, token.id, "bytes:")
        alternatives: dict[str, float] = {}
        for id, logprob in token.logprobs.top:
            alternatives.setdefault(_name(tokenizer, id, "bytes:"), _finite(logprob))
        alternatives.setdefault(name, _finite(token.logprobs.logprob))
        text_offset.append(token.offset)
        token_logprobs.append(_finite(token.logprobs.logprob))
        names.append(name)
        top_logprobs.append(alternatives)
    return {
        "text_offset": text_offset,
        "token_logprobs": token_logprobs,
        "tokens": names,
        "top_logprobs": top_logprobs,
    }


def _entry(tokenizer: Tokenizer, id: int, logprob: float) -> dict[str, Any]:
    special = tokenizer.is_special(id)
    return {
        "token": _name(tokenizer, id, ""),
        "logprob": _finite(logprob),
        "bytes": None if special else list(tokenizer.token_bytes(id)),
    }


def _name(tokenizer: Tokenizer, id: int, prefix: str) -> str:
    """The token as text; bytes that are no whole characters are written as \\xNN."""
    if tokenizer.is_special(id):
        return tokenizer.token_text(id)
    raw = tokenizer.token_bytes(id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    return max(logprob, UNLIKELY) if logprob == logprob else UNLIKELY
