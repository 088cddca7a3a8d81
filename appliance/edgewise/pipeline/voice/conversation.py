"""What has been said in a session, by whom, how much of it was heard, and which of it a model is still told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from edgewise.core.errors import InvalidRequest

Speaker = Literal["user", "assistant", "system"]
Status = Literal["in_progress", "completed", "incomplete"]

MESSAGE_TOKENS: Final = 8
"""What a chat template adds to each message, at most."""
KEPT_SHARE: Final = 0.75
"""After turns are dropped, the rest fills this share of the budget, so that the next turns find their beginning cached."""


@dataclass(slots=True)
class SpokenPhrase:
    """A phrase of an answer and how long its sound is, in milliseconds."""

    text: str
    ms: float


@dataclass(slots=True, kw_only=True)
class Item:
    """One message.

    Attributes:
        audio: Whether it was spoken, else written.
        phrases: Of an answer, what was spoken so far.
        end_ms: Where a listener interrupted it; None if heard to its end.
    """

    id: str
    role: Speaker
    text: str = ""
    audio: bool = False
    status: Status = "completed"
    phrases: list[SpokenPhrase] = field(default_factory=list)
    end_ms: float | None = None
    tokens: int | None = None

    @property
    def audio_ms(self) -> float:
        return sum(phrase.ms for phrase in self.phrases)

    @property
    def heard(self) -> str:
        """Its text, as far as it was heard."""
        return self.text if self.end_ms is None else heard_text(self.phrases, self.end_ms)


def heard_text(phrases: list[SpokenPhrase], end_ms: float) -> str:
    """The text of the first `end_ms` of speech; of the phrase that was interrupted its words in proportion."""
    text, left = "", end_ms
    for phrase in phrases:
        if left >= phrase.ms:
            text += phrase.text
            left -= phrase.ms
            continue
        cut = phrase.text[: int(len(phrase.text) * left / phrase.ms)]
        whole = len(cut) == len(phrase.text) or not cut or phrase.text[len(cut)].isspace()
        return text + (cut if whole else cut[: cut.rfind(" ") + 1])
    return text


class Conversation:
    """The items of one session, oldest first."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: Item) -> bool:
        return any(one is item for one in self._items)

    @property
    def last(self) -> Item | None:
        return self._items[-1] if self._items else None

    @property
    def last_id(self) -> str | None:
        return self._items[-1].id if self._items else None

    def add(self, item: Item) -> str | None:
        """Append; returns the id of the item before it."""
        if any(one.id == item.id for one in self._items):
            raise InvalidRequest(f"There is an item '{item.id[:80]}' already.", param="item.id")
        previous = self.last_id
        self._items.append(item)
        return previous

    def find(self, id: str, param: str = "item_id") -> Item:
        """Raises `InvalidRequest` if there is none."""
        for item in self._items:
            if item.id == id:
                return item
        raise InvalidRequest(
            f"There is no item '{id[:80]}' in this conversation; old ones are dropped when it outgrows the model's context.",
            param=param,
        )

    def delete(self, id: str) -> None:
        """Raises as `find` does."""
        self._items.remove(self.find(id))

    def truncate(self, id: str, end_ms: float) -> Item:
        """An answer was heard up to here: the rest is told to no model. Exact values may follow an estimate.

        Raises:
            InvalidRequest: No such item, it is no spoken answer, or it is shorter.
        """
        item = self.find(id)
        if item.role != "assistant" or not item.audio:
            raise InvalidRequest(
                f"The item '{id[:80]}' is no spoken answer: only those are truncated.", param="item_id"
            )
        if end_ms > item.audio_ms + 1:
            raise InvalidRequest(
                f"'audio_end_ms' is {end_ms:g}, but {item.audio_ms:.0f} ms of this answer were spoken.",
                param="audio_end_ms",
            )
        item.end_ms = end_ms
        item.tokens = None
        return item

    def messages(self, instructions: str) -> tuple[Mapping[str, Any], ...]:
        """The conversation for a chat template; what was never heard or said is left out."""
        head = [{"role": "system", "content": instructions}] if instructions else []
        told = [{"role": one.role, "content": one.heard.strip()} for one in self._items]
        return tuple(head + [one for one in told if one["content"]])

    def fit(self, count: Callable[[str], int], budget: int) -> list[str]:
        """Drop the oldest items where all are more than `budget` tokens, an answer with its question, never the last item.

        Args:
            count: Tokens of a text.

        Returns:
            The ids of those that were dropped.
        """
        for item in self._items:
            if item.tokens is None:
                item.tokens = count(item.heard) + MESSAGE_TOKENS
        total = sum(item.tokens or 0 for item in self._items)
        dropped: list[str] = []
        if total <= budget:
            return dropped
        while len(self._items) > 1 and (total > budget * KEPT_SHARE or self._items[0].role == "assistant"):
            oldest = self._items.pop(0)
            total -= oldest.tokens or 0
            dropped.append(oldest.id)
        return dropped
