"""What happens to each request field: honoured, accepted without effect, or refused by name. docs/api.md is tested against it.

A field is *ignored* if it cannot change the answer here: the receipt lists it. A field is *refused* if it would change the
answer and is not supported; values that ask for nothing are let through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """Attributes:
    why: Completes "'field' is not supported here: ...".
    harmless: Whether a value (not null) asks for nothing that is missing here.
    """

    why: str
    harmless: Callable[[Any], bool]


def never(_: Any) -> bool:
    return False


def empty(value: Any) -> bool:
    return value in ([], {}, "")


def one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


CHAT_IGNORED = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

CHAT_REFUSED: Mapping[str, Refusal] = {
    "function_call": Refusal("it is the old form of 'tool_choice': use that", one_of("none", "auto")),
    "functions": Refusal("it is the old form of 'tools': use that", empty),
    "moderation": Refusal("no moderation model is run", never),
    "reasoning_effort": Refusal("no model here has a setting for it", one_of("none")),
    "verbosity": Refusal("no model here has a setting for it", one_of("medium")),
    "web_search_options": Refusal("there is no web search", never),
}

COMPLETION_IGNORED = frozenset({"user"})

COMPLETION_REFUSED: Mapping[str, Refusal] = {
    "best_of": Refusal("answers are not ranked; ask for them with 'n'", one_of(1)),
    "suffix": Refusal("text cannot be inserted before a suffix", empty),
}

STREAM_OPTIONS_IGNORED = frozenset({"include_obfuscation"})
MESSAGE_IGNORED = frozenset({"annotations", "name"})
PART_IGNORED = frozenset({"prompt_cache_breakpoint"})

EXTENSIONS = (
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "keep_alive",
    "min_p",
    "min_tokens",
    "repetition_penalty",
    "return_token_ids",
    "stop_token_ids",
    "structured_outputs",
    "timeout",
    "top_k",
)
