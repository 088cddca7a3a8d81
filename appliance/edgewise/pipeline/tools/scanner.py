"""Tool calls in a text that arrives in pieces.

What it finds does not depend on how the text is cut: every decision is made at a certain character. Text that began like a call
and is none is content, so nothing that a model writes is lost. White space before a call is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from edgewise.pipeline.tools.call_object import CallObject, Step, ValueReader
from edgewise.pipeline.tools.styles import ToolStyle


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of call number `index`; `name` comes with its first piece only."""

    index: int
    name: str | None
    arguments: str


Found = str | CallPiece


class CallScanner:
    """Divides an answer into content and calls.

    Args:
        names: Functions that may be called; anything else is content.
        parallel: False ends the answer with its first call.

    Attributes:
        calls: Calls begun so far.
        finished: The answer has ended: what follows is not read.
    """

    def __init__(self, style: ToolStyle, names: Collection[str], *, parallel: bool = True) -> None:
        self.calls = 0
        self.finished = False
        self._style = style
        self._names = names
        self._parallel = parallel
        self._state: Callable[[], bool] = self._in_text
        self._buffer = ""
        self._raw = ""
        self._space = ""
        self._fresh = style.anchored
        self._array = False
        self._announced = False
        self._object = CallObject(names)
        self._arguments = ValueReader()
        self._found: list[Found] = []

    def __repr__(self) -> str:
        return f"CallScanner({self._style.name}, calls={self.calls}, held={len(self._raw) + len(self._buffer)})"

    @property
    def inside(self) -> bool:
        """A call has begun and not ended."""
        return self._announced

    def feed(self, text: str) -> list[Found]:
        """Read text, return what is certain."""
        self._buffer += text
        while self._buffer and not self.finished and self._state():
            pass
        return self._take()

    def flush(self) -> list[Found]:
        """The text has ended: return what was held."""
        if not self.finished and not self._announced and not self._ends_inside_a_marker():
            self._say(self._raw + self._buffer)
            if self._space and not self.calls:
                self._found.append(self._space)
        self._raw = self._buffer = self._space = ""
        return self._take()

    def _ends_inside_a_marker(self) -> bool:
        between_calls = self._state in (self._after_object, self._closing)
        return between_calls and self._style.end.startswith(self._buffer.strip())

    # --- content ---------------------------------------------------------------------------------------------------------

    def _in_text(self) -> bool:
        if self._fresh:
            body = self._buffer.lstrip()
            if not body:
                return False
            self._fresh = False
            if self._style.form == "named" or body[0] == "{":
                self._raw = self._buffer[: -len(body)]
                self._buffer = body
                self._enter()
                return True
        start = self._buffer.find(self._style.trigger)
        if start < 0:
            keep = _partial(self._buffer, self._style.trigger)
            self._say(self._buffer[: len(self._buffer) - keep])
            self._buffer = self._buffer[len(self._buffer) - keep :]
            return False
        end = start + len(self._style.trigger)
        self._say(self._buffer[:start])
        self._raw, self._buffer = self._buffer[start:end], self._buffer[end:]
        self._enter()
        return True

    def _say(self, text: str) -> None:
        """Content; white space at its end waits for what follows."""
        body = text.rstrip()
        if body:
            self._found.append(self._space + body)
            self._space = ""
        self._space += text[len(body) :]

    def _enter(self) -> None:
        """A call may begin here."""
        self._array = False
        self._state = self._in_name if self._style.form == "named" else self._opening

    def _give_up(self) -> bool:
        """This was no call: what was read of it is content, what was not is read as text."""
        self._say(self._raw)
        self._raw = ""
        self._state = self._in_text
        return True

    # --- calls as JSON objects -------------------------------------------------------------------------------------------

    def _opening(self) -> bool:
        body = self._buffer.lstrip()
        if not body:
            return False
        if body[0] == "[" and not self._array:
            self._array = True
            self._consume(len(self._buffer) - len(body) + 1)
            return True
        if body[0] != "{":
            return self._give_up()
        self._object = CallObject(self._names)
        self._state = self._in_object
        return True

    def _in_object(self) -> bool:
        for position, char in enumerate(self._buffer):
            step = self._object.push(char)
            if step is Step.FAILED:
                self._consume(position)
                return self._give_up()
            if self._object.name is not None and not self._announced:
                self._announce(self._object.name)
            if step is not Step.MORE:
                self._pass_on(self._object.take())
                self._consume(position + (step is Step.DONE))
                return self._end_call(self._after_object)
        self._pass_on(self._object.take())
        self._consume(len(self._buffer))
        return False

    def _after_object(self) -> bool:
        body = self._buffer.lstrip()
        if not body:
            return False
        between = "," if self._array else self._style.between.strip()
        if between and body[0] == between:
            self._raw = self._buffer[: len(self._buffer) - len(body) + 1]
            self._buffer = body[1:]
            self._state = self._opening
        elif self._style.end and not self._array and body[0] == "{":
            self._state = self._opening
        else:
            if self._array and body[0] == "]":
                self._buffer = body[1:]
            self._array = False
            self._state = self._closing
        return True

    def _closing(self) -> bool:
        body = self._buffer.lstrip()
        end = self._style.end
        if end and body != end and end.startswith(body):
            return False
        if end and body.startswith(end):
            self._buffer = body[len(end) :]
        self._state = self._in_text
        return True

    # --- calls as a name and an object -----------------------------------------------------------------------------------

    def _in_name(self) -> bool:
        heads = {name + self._style.separator: name for name in self._names}
        head = next((head for head in heads if self._buffer.startswith(head)), None)
        if head is None:
            return False if any(one.startswith(self._buffer) for one in heads) else self._give_up()
        body = self._buffer[len(head) :].lstrip()
        if not body:
            return False
        if body[0] != "{":
            return self._give_up()
        self._announce(heads[head])
        self._buffer = body
        self._arguments = ValueReader()
        self._state = self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        for position, char in enumerate(self._buffer):
            if self._arguments.push(char) is Step.DONE:
                self._pass_on(self._buffer[: position + 1])
                self._buffer = self._buffer[position + 1 :]
                return self._end_call(self._closing)
        self._pass_on(self._buffer)
        self._buffer = ""
        return False

    # --- bookkeeping -----------------------------------------------------------------------------------------------------

    def _announce(self, name: str) -> None:
        """A call is certain."""
        self._found.append(CallPiece(self.calls, name, ""))
        self.calls += 1
        self._announced = True
        self._raw = self._space = ""

    def _pass_on(self, arguments: str) -> None:
        if arguments:
            self._found.append(CallPiece(self.calls - 1, None, arguments))

    def _end_call(self, state: Callable[[], bool]) -> bool:
        self._announced = False
        self.finished = not self._parallel
        self._raw = ""
        self._state = state
        return True

    def _consume(self, count: int) -> None:
        if not self._announced:
            self._raw += self._buffer[:count]
        self._buffer = self._buffer[count:]

    def _take(self) -> list[Found]:
        found, self._found = self._found, []
        return found


def _partial(text: str, pattern: str) -> int:
    """Length of the longest end of `text` that begins `pattern`."""
    most = min(len(text), len(pattern) - 1)
    return next((length for length in range(most, 0, -1) if pattern.startswith(text[-length:])), 0)
