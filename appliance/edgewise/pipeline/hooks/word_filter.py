"""Refuses or replaces prompts, and ends answers, by a list of words and expressions.

The list is a text file in UTF-8, one entry a line: a word or phrase, found as whole words in any case, or an expression between
slashes (Python's `re`, in any case). Lines that begin with `#` are comments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from edgewise.core.errors import ConfigError, ContentRefused
from edgewise.pipeline.hooks.protocol import Call, Hook, HookSetup, PromptText

_OPTIONS = frozenset({"file", "prompt", "answer", "hold"})
_DEFAULT_HOLD = 128
_REMOVED = "[removed]"


class WordFilter(Hook):
    """Options: `file` (required); `prompt` = refuse (default), replace or off; `answer` = end (default) or off; `hold`: the
    longest match of an expression in characters (128).
    """

    name = "word-filter"

    def __init__(self, setup: HookSetup) -> None:
        super().__init__(setup)
        options = setup.options
        unknown = sorted(options.keys() - _OPTIONS)
        if unknown:
            raise ConfigError(f"hooks.options: word-filter has no option '{unknown[0]}'.")
        if "file" not in options:
            raise ConfigError("hooks.options: word-filter needs `word-filter.file=PATH`, a list of words.")
        self._prompt = _choice(options.get("prompt", "refuse"), "prompt", ("refuse", "replace", "off"))
        self._answer = _choice(options.get("answer", "end"), "answer", ("end", "off"))
        hold = options.get("hold", str(_DEFAULT_HOLD))
        if not hold.isdecimal() or not 1 <= int(hold) <= 4096:
            raise ConfigError("hooks.options: word-filter.hold must be a number from 1 to 4096.")
        self._pattern, self._hold = _read_list(setup.home / Path(options["file"]).expanduser(), int(hold))

    async def before_prompt(self, call: Call, texts: Sequence[PromptText]) -> Sequence[str]:
        del call  # one list for all callers
        if self._prompt == "replace":
            return [self._pattern.sub(_REMOVED, one.text) for one in texts]
        if self._prompt == "refuse" and any(self._pattern.search(one.text) for one in texts):
            raise ContentRefused("The prompt has words that this service's word filter does not let through.")
        return [one.text for one in texts]

    def watch(self, call: Call) -> WordWatch | None:
        del call
        return WordWatch(self._pattern, self._hold) if self._answer == "end" else None


class WordWatch:
    """Ends a text where a match begins."""

    def __init__(self, pattern: re.Pattern[str], hold_back: int) -> None:
        self.hold_back = hold_back
        self._pattern = pattern

    async def check(self, text: str, start: int, *, last: bool) -> int | None:
        for match in self._pattern.finditer(text):
            if match.end() > start and (last or match.end() < len(text)):
                return match.start()
        return None


def _choice(value: str, option: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ConfigError(f"hooks.options: word-filter.{option} must be one of {', '.join(allowed)}.")
    return value


def _read_list(path: Path, hold: int) -> tuple[re.Pattern[str], int]:
    """One pattern of all entries, and the characters to hold back: the longest match and the one after it."""
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"hooks.options: word-filter cannot read {path}: {error}") from error
    entries = [line for line in lines if line and not line.startswith("#")]
    if not entries:
        raise ConfigError(f"hooks.options: word-filter finds no entry in {path}.")
    longest = 0
    parts = []
    for number, entry in enumerate(entries, 1):
        expression = len(entry) > 2 and entry.startswith("/") and entry.endswith("/")
        longest = max(longest, hold if expression else len(entry))
        part = entry[1:-1] if expression else rf"(?<!\w){re.escape(entry)}(?!\w)"
        try:
            matches_nothing = re.compile(part).match("") is not None
        except re.error as error:
            raise ConfigError(f"hooks.options: entry {number} of {path} is no expression: {error}") from error
        if matches_nothing:
            raise ConfigError(f"hooks.options: entry {number} of {path} matches the empty text.")
        parts.append(f"(?:{part})")
    return re.compile("|".join(parts), re.IGNORECASE), longest + 1
