"""One tool call as a JSON object, read character by character: `{"name": "f", "arguments": {...}}`, members in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from enum import Enum

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class Step(Enum):
    """What became of a character."""

    MORE = "taken, more is to come"
    DONE = "taken, and the last one"
    BEFORE = "not taken: it ended before this one"
    FAILED = "not taken: this is none"


class ValueReader:
    """Finds the end of one JSON value. It checks no grammar: what a model writes is passed on as it is."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escaped = False
        self._begun = False

    def push(self, char: str) -> Step:
        """The next character; the first one must not be white space."""
        if self._string:
            return self._in_string(char)
        scalar = self._begun and not self._depth
        self._begun = True
        if scalar and (char in _SPACE or char in ",}]"):
            return Step.BEFORE
        if char == '"':
            self._string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return Step.MORE if self._depth > 0 else Step.DONE if self._depth == 0 else Step.FAILED
        return Step.MORE

    def _in_string(self, char: str) -> Step:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._string = False
            return Step.MORE if self._depth else Step.DONE
        return Step.MORE


class CallObject:
    """Reads one call.

    Attributes:
        name: Of the function, as soon as it is known to be one of `names`.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.name: str | None = None
        self._names = names
        self._state: Callable[[str], Step] = self._open
        self._value = ValueReader()
        self._text: list[str] = []
        self._key = ""
        self._live = False
        self._arguments: list[str] = []
        self._given = False

    def push(self, char: str) -> Step:
        """The next character. FAILED comes only while `name` is unknown."""
        return self._state(char)

    def take(self) -> str:
        """Characters of the arguments that have come since the last time; none before the name is known."""
        if self.name is None:
            return ""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _open(self, char: str) -> Step:
        if char in _SPACE:
            return Step.MORE
        self._state = self._before_key
        return Step.MORE if char == "{" else Step.FAILED

    def _before_key(self, char: str) -> Step:
        if char in _SPACE:
            return Step.MORE
        if char == "}":
            return self._finish()
        if char != '"':
            return self._broken()
        self._begin(self._in_key)
        return self._in_key(char)

    def _in_key(self, char: str) -> Step:
        self._text.append(char)
        if self._value.push(char) is Step.DONE:
            self._key = str(_loads("".join(self._text)))
            self._state = self._before_colon
        return Step.MORE

    def _before_colon(self, char: str) -> Step:
        if char in _SPACE:
            return Step.MORE
        if char != ":":
            return self._broken()
        self._state = self._before_value
        return Step.MORE

    def _before_value(self, char: str) -> Step:
        if char in _SPACE:
            return Step.MORE
        self._live = char == "{" and self.name is not None and self._key in _ARGUMENTS and not self._given
        self._given |= self._live
        self._begin(self._in_value)
        return self._in_value(char)

    def _in_value(self, char: str) -> Step:
        step = self._value.push(char)
        if step is Step.FAILED:
            return self._broken()
        if step is not Step.BEFORE:
            (self._arguments if self._live else self._text).append(char)
        if step is Step.MORE:
            return step
        self._state = self._after_value
        if not self._live and not self._store(self._key, "".join(self._text)):
            return Step.FAILED
        return Step.MORE if step is Step.DONE else self._after_value(char)

    def _after_value(self, char: str) -> Step:
        if char in _SPACE:
            return Step.MORE
        if char == "}":
            return self._finish()
        if char != ",":
            return self._broken()
        self._state = self._before_key
        return Step.MORE

    def _begin(self, state: Callable[[str], Step]) -> None:
        self._value, self._text, self._state = ValueReader(), [], state

    def _store(self, key: str, text: str) -> bool:
        """Keep a member that was not passed on while it came; False if this is no call of a known function."""
        if key == "name" and self.name is None:
            name = _loads(text)
            self.name = name if isinstance(name, str) and name in self._names else None
            return self.name is not None
        if key in _ARGUMENTS and not self._given:
            value = _loads(text)
            self._given = True
            self._arguments.append(value if isinstance(value, str) else "{}" if value is None else text)
        return True

    def _finish(self) -> Step:
        if self.name is None:
            return Step.FAILED
        if not self._given:
            self._arguments.append("{}")
        return Step.DONE

    def _broken(self) -> Step:
        return Step.FAILED if self.name is None else Step.BEFORE


def _loads(text: str) -> object:
    """A JSON value; the text itself if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text
