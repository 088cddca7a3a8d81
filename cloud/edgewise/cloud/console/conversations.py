"""What was said in the chats of this console: per login and device, in the memory of the fleet service, until the login ends."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

_KEPT = 200
_LINES = 200
_CHARACTERS = 100_000


@dataclass(slots=True)
class Line:
    """`note` is what the page shows under an answer: its receipt, or why there is none."""

    role: Literal["user", "assistant"]
    content: str
    note: str = ""


@dataclass(slots=True)
class Conversation:
    """Lines in turn, question and answer. `command_id`: of the question that is being answered; "" if none is."""

    lines: list[Line] = field(default_factory=list)
    command_id: str = ""

    def messages(self) -> list[dict[str, str]]:
        """For the device: questions that got an answer, each with it, and the newest question."""
        told = []
        for line, after in zip(self.lines, [*self.lines[1:], None], strict=True):
            if line.content and (line.role == "assistant" or after is None or after.content):
                told.append({"role": line.role, "content": line.content})
        return told

    def ask(self, text: str) -> None:
        """A question; the oldest ones give way to it."""
        self.lines.append(Line("user", text))
        while len(self.lines) > _LINES or sum(len(line.content) for line in self.lines[:-1]) > _CHARACTERS:
            del self.lines[:2]

    def answer(self, command_id: str, text: str, note: str) -> None:
        """The end of a question's command. Several open pages may see it: the first one writes it down."""
        if self.command_id == command_id:
            self.command_id = ""
            self.lines.append(Line("assistant", text, note))


class Conversations:
    """By session and device. The longest untouched give way once there are 200."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[tuple[str, str], Conversation] = OrderedDict()

    def of(self, token: str, uid: str) -> Conversation:
        """This session's with this device; a new one if there is none."""
        found = self._by_key.setdefault((token, uid), Conversation())
        self._by_key.move_to_end((token, uid))
        while len(self._by_key) > _KEPT:
            self._by_key.popitem(last=False)
        return found

    def clear(self, token: str, uid: str) -> Conversation:
        """A new one in its place."""
        self._by_key.pop((token, uid), None)
        return self.of(token, uid)

    def forget(self, token: str) -> None:
        """All of a session that has ended."""
        for key in [key for key in self._by_key if key[0] == token]:
            del self._by_key[key]
