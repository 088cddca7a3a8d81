"""What the pool knows of one model, and what it wants done. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from edgewise.core.errors import EdgewiseError
from edgewise.core.modality import Modality
from edgewise.engine.fit import Needs

State = Literal["cold", "waiting", "loading", "ready", "unloading"]
Why = Literal["keep_alive", "evicted", "resized", "asked", "removed", "failed"]

FOREVER = float("inf")


@dataclass(slots=True, kw_only=True)
class Entry:
    """One model. Times are seconds on a monotonic clock.

    Attributes:
        key: Unique, also among versions of a model with one name.
        needs: Smallest and largest useful memory budget.
        modality: What it serves: who gives way first, and waits last, where memory is short.
        pinned: Loaded at start and never unloaded for good; an idle one may be started again with less memory.
        keep_alive_s: How long it stays loaded after its last answer, unless a request says otherwise.
        held_s: The same as the latest request wants it.
        granted: Bytes of the budget that its engine may book; also while it is being loaded or unloaded.
        waiters: Requests that wait for it to be loaded.
        streams: Requests that its engine has, queued or writing.
        asked: When the first of the present waiters came.
        used: When it was last asked or finished an answer.
        expires: When it is unloaded; None while it is busy, pinned or not loaded.
        failure, retry_at: Why the last load failed, and from when on the next request tries again.
        improving: Whether its engine makes itself quicker: then it is not unloaded for want of requests, only for another's room.
        retired: Not to be loaded any more; forgotten once it is unloaded.
    """

    key: str
    name: str
    needs: Needs
    modality: Modality = Modality.CHAT
    pinned: bool
    keep_alive_s: float
    held_s: float
    state: State = "cold"
    granted: int = 0
    waiters: int = 0
    streams: int = 0
    asked: float = 0.0
    used: float = 0.0
    expires: float | None = None
    failure: EdgewiseError | None = None
    retry_at: float = 0.0
    improving: bool = False
    retired: bool = False

    @property
    def busy(self) -> bool:
        return self.waiters + self.streams > 0

    @property
    def wanted(self) -> bool:
        """Whether it is to be loaded as soon as there is room."""
        return self.waiters > 0 or (self.pinned and not self.retired)

    @property
    def kept(self) -> int:
        """Bytes that come back into use after it is unloaded: a pinned model's own."""
        return self.needs.minimal if self.pinned and not self.retired else 0


@dataclass(frozen=True, slots=True)
class Load:
    """Start its engine with a memory budget of `budget` bytes, then call `loaded` or `failed`."""

    key: str
    budget: int


@dataclass(frozen=True, slots=True)
class Unload:
    """End its engine, also one that is still loading, then call `unloaded`."""

    key: str
    why: Why


@dataclass(frozen=True, slots=True)
class Grant:
    """All who wait for it may submit now; each is counted as a stream and calls `release` in the end."""

    key: str


@dataclass(frozen=True, slots=True)
class Fail:
    """All who wait for it get this error; none of them is counted any more."""

    key: str
    error: EdgewiseError


Action: TypeAlias = Load | Unload | Grant | Fail


def again(error: EdgewiseError, *, retry_after_s: float | None = None) -> EdgewiseError:
    """The same error as a new object: an exception that several tasks raise would collect all their tracebacks."""
    return type(error)(
        error.message,
        param=error.param,
        retry_after_s=error.retry_after_s if retry_after_s is None else retry_after_s,
    )
