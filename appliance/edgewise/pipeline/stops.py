"""Stop strings in a text that arrives in pieces.

One automaton per stop string (Knuth, Morris, Pratt 1977) reads each character once, so a stop string may be as long as it
likes and cross any number of pieces. The result is that of searching the whole text: it is cut at the smallest start of any
stop string in it, however it was divided.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Automaton:
    """Longest suffix of the text read so far that begins `pattern`."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._fallback = _borders(pattern)

    def step(self, char: str) -> bool:
        """Read one character; True if the pattern ends here."""
        if self.matched == len(self.pattern):
            self.matched = self._fallback[self.matched]
        while self.matched and self.pattern[self.matched] != char:
            self.matched = self._fallback[self.matched]
        if self.pattern[self.matched] == char:
            self.matched += 1
        return self.matched == len(self.pattern)


def _borders(pattern: str) -> list[int]:
    """borders[i]: length of the longest proper prefix of pattern[:i] that is also its suffix."""
    borders = [0, 0]
    length = 0
    for char in pattern[1:]:
        while length and pattern[length] != char:
            length = borders[length]
        length += pattern[length] == char
        borders.append(length)
    return borders


class StopScanner:
    """Releases text that no stop string can begin in, and finds the earliest stop string.

    Attributes:
        found: Position (in characters of the whole text) of the stop string that ended it; None while there is none.
        released: Characters released so far.
        pattern: The stop string at `found`; of several that begin there, the shortest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self.found: int | None = None
        self.released = 0
        self.pattern: str | None = None
        self._automata = [_Automaton(stop) for stop in dict.fromkeys(stops)]
        self._held = ""
        self._read = 0
        self._match: int | None = None

    def __repr__(self) -> str:
        return f"StopScanner(released={self.released}, held={len(self._held)}, found={self.found})"

    def feed(self, text: str) -> str:
        """Read text, return what may be shown; once `found` is set nothing more is read."""
        if not self._automata:
            self._read += len(text)
            self.released = self._read
            return text
        released: list[str] = []
        for char in text:
            if self.found is not None:
                break
            released.append(self._step(char))
        return "".join(released)

    def flush(self) -> str:
        """The text has ended: return what is still held, up to a stop string that was waiting for an earlier one."""
        if self.found is None:
            self.found = self._match
        return self._release(self.found if self.found is not None else self._read)

    def _step(self, char: str) -> str:
        self._held += char
        self._read += 1
        longest = 0
        for automaton in self._automata:
            if automaton.step(char):
                start = self._read - len(automaton.pattern)
                if self._match is None or start < self._match:
                    self._match, self.pattern = start, automaton.pattern
            else:
                longest = max(longest, automaton.matched)
        earliest = self._read - longest  # where the earliest unfinished stop string may have begun
        if self._match is not None and earliest >= self._match:
            self.found = earliest = self._match
        return self._release(earliest)

    def _release(self, position: int) -> str:
        """Release the text before `position`; once a stop string is found the rest is dropped."""
        count = position - self.released
        text, self._held = self._held[:count], "" if self.found is not None else self._held[count:]
        self.released = position
        return text
