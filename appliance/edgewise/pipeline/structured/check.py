"""Compile a grammar before anything is queued, so that a bad one is refused before the first byte."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer

from edgewise.core.errors import InvalidRequest
from edgewise.engine.constraint import LIMITS, grammar_tokenizer
from edgewise.pipeline.structured.vocabulary import Spelled, checking_vocabulary

MAX_CONSTRAINT_CHARS = 1 << 20


class GrammarCheck:
    """Compiles with one model's control tokens; may be used from any thread, and takes time: not from the event loop."""

    def __init__(self, tokenizer: Spelled) -> None:
        self._tokenizer: LLTokenizer = grammar_tokenizer(checking_vocabulary(tokenizer))

    def problem(self, constraint: str) -> str | None:
        """Why the engine would refuse this grammar, or could write nothing at all with it; None if it can be followed."""
        if len(constraint) > MAX_CONSTRAINT_CHARS:
            return f"it is {len(constraint)} characters long, the limit is {MAX_CONSTRAINT_CHARS}"
        matcher = LLMatcher(self._tokenizer, constraint, log_level=0, limits=LIMITS)
        if matcher.is_error():
            return plain(matcher.get_error())
        bits = matcher.compute_bitmask()
        if matcher.is_error() or not any(bits):
            return "nothing can be written with it"
        return None

    def require(self, constraint: str, param: str, what: str) -> None:
        """Raises `InvalidRequest` naming the field and what is wrong."""
        problem = self.problem(constraint)
        if problem is not None:
            raise InvalidRequest(f"'{param}': {what} cannot be followed: {problem}.", param=param)


def plain(error: str) -> str:
    """What llguidance says, in one line and without its own source references."""
    if error.startswith("panic"):
        return "it is beyond the limits of the grammar compiler: make it smaller"
    lines = [line.strip() for line in error.split("\n") if line.strip()]
    text = "; ".join(line for line in lines[:4] if not line.lstrip("0123456789 ").startswith("|") and set(line) - {"^"})
    _, found, rest = text.partition("failed to compile JSON schema: ")
    told = rest if found else text
    if told.startswith("oneOf constraints"):
        return "'oneOf' needs cases that exclude each other: use 'anyOf'"
    return told[:300].rstrip(".")
