"""What a hook is: a class below `Hook` that overrides what it needs. Plug-ins are entry points of the group `edgewise.hooks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSetup:
    """What a hook's class is called with.

    Attributes:
        home: The service's state directory.
        options: The hook's own options: `hooks.options` entries `NAME.option=value`, without the name.
    """

    home: Path
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, as hooks know it.

    Attributes:
        key: Id of the caller's key; "anonymous" for callers without one.
        digest: Of the model's files.
    """

    request_id: str
    key: str
    model: str
    digest: str


@dataclass(frozen=True, slots=True)
class PromptText:
    """A text of the prompt.

    Attributes:
        role: "system", "user", "assistant" or "tool" of a conversation; "call" for the arguments of an earlier call and
            "tools" for a function's definition, both JSON; "prompt" of a text completion or a picture, "negative_prompt" for
            what a picture shall not show.
    """

    role: str
    text: str


class TextFilter(Protocol):
    """Watches one text of an answer while it is written.

    Attributes:
        hold_back: Characters that are held until what follows them is known: no match may be longer. The answer comes later by
            as many.
    """

    hold_back: int

    async def check(self, text: str, start: int, *, last: bool) -> int | None:
        """Where the answer must end, None to let it go on.

        Args:
            text: Some characters that were shown, for context, then those that were not.
            start: The first that was not shown; a result before it is taken as `start`.
            last: Nothing follows. Until then a match that touches the end may still grow, and can wait.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one answer ended.

    Attributes:
        finish: "stop", "length", "tool_calls", "content_filter"; "done" for a picture; None if it was cut off.
        sha256: Of its text in UTF-8, arguments of tool calls included, as it was shown; of a picture, of its file as PNG.
        text: Only for hooks with `wants_text`.
    """

    finish: str | None
    sha256: str
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One step of a request.

    Attributes:
        event: "asked" before the engine gets it, "answered" when it has ended, "refused" when a hook refused it.
        time: Seconds since the epoch.
        outcome: "completed", or the code of the error that ended it; None when asked.
        prompt_sha256: Of the prompt's texts as JSON, after replacements.
        prompt_text: Only for hooks with `wants_text`.
    """

    event: Literal["asked", "answered", "refused"]
    time: float
    call: Call
    prompt_sha256: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    answers: tuple[Answer, ...] = ()
    outcome: str | None = None
    prompt_text: str | None = None


class Hook:
    """Base of all hooks; every method does nothing here. Methods run in the event loop and must not block it.

    What a method raises refuses the request (or is logged and passed over, see `hooks.on_error`).

    Attributes:
        name: By which it is enabled.
        wants_text: Audit records carry prompts and answers.
    """

    name: str = ""
    wants_text: bool = False

    def __init__(self, setup: HookSetup) -> None:
        """Raises `ConfigError` for options that it does not know or that are wrong."""
        del setup

    async def before_prompt(self, call: Call, texts: Sequence[PromptText]) -> Sequence[str]:
        """The texts as the model shall see them, as many and in the same order.

        Raises:
            ContentRefused: The request is refused; the message is told to the caller.
        """
        del call
        return [one.text for one in texts]

    def watch(self, call: Call) -> TextFilter | None:
        """A filter for one text of the request's answer; None lets all of it pass."""
        del call
        return None

    async def audit(self, record: AuditRecord) -> None:
        """A request begins or has ended: awaited before the engine gets it ("asked") and before its end is told ("answered")."""
        del record

    async def aclose(self) -> None:
        """The service stops."""
