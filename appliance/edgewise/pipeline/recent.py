"""The inputs that a service answered lately, for trials of other models. In memory only; nothing of them leaves the process."""

from __future__ import annotations

from collections import deque

from edgewise.pipeline.task import ChatInput, Task, TextInput

TRIAL_KEY = "fleet-trial"
"""As whom trials ask; what they ask is not remembered."""
_LONGEST = 16_384  # characters of an input that is kept


class RecentInputs:
    """The newest inputs, each once.

    Args:
        keep: How many; 0 remembers nothing.
    """

    def __init__(self, keep: int = 64) -> None:
        self._inputs: deque[ChatInput | TextInput] = deque(maxlen=keep)

    def __len__(self) -> int:
        return len(self._inputs)

    def note(self, task: Task) -> None:
        """Remember what a task asks, unless it is long, asked before or not all text."""
        if isinstance(task.input, ChatInput) and (task.input.attachments or task.input.media):
            return
        if task.key != TRIAL_KEY and _size(task.input) <= _LONGEST and task.input not in self._inputs:
            self._inputs.append(task.input)

    def newest(self, count: int) -> list[ChatInput | TextInput]:
        """Up to `count`, the newest first."""
        return list(self._inputs)[::-1][:count]


def _size(given: ChatInput | TextInput) -> int:
    if isinstance(given, TextInput):
        return sum(len(prompt) for prompt in given.prompts)
    return sum(len(str(message)) for message in given.messages) + sum(len(str(tool)) for tool in given.tools)
