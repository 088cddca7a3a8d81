"""What is known about one HTTP request while it is served; made by the outermost middleware, kept in the ASGI scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from edgewise.api.deps import KeyRecord
from edgewise.api.requests import RequestRecord
from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.pipeline.plan import PolicyName

_SCOPE_KEY = "edgewise.context"
ANONYMOUS_SALT = "anonymous"


def key_salt(id: str) -> str:
    """The salt of a key's requests."""
    return f"key:{id}"


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """Attributes:
    id: Names the request in the answer's header, receipt and log.
    key: The caller's key; None for an anonymous loopback caller.
    priority, privacy, policy: Deadline class, label and placement policy that the request's headers ask for; None without one.
    record: Set while a generation request is admitted.
    error: Code of the error that the caller was told, also inside a stream.
    facts: For the log line.
    transcript: Text of each answer by its index; kept only if it is to be logged.
    """

    id: str
    started: float
    key: KeyRecord | None = None
    priority: Priority | None = None
    privacy: Privacy | None = None
    policy: PolicyName | None = None
    record: RequestRecord | None = None
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    transcript: dict[int, str] = field(default_factory=dict)

    def keep_text(self, sequence: int, text: str) -> None:
        """Add a piece of an answer to the transcript, if there is to be one."""
        if "answer" in self.facts:
            self.transcript[sequence] = self.transcript.get(sequence, "") + text

    @property
    def salt(self) -> str:
        """Separates prefix-cache entries by key; the prefix keeps a key from naming another purpose's entries."""
        return ANONYMOUS_SALT if self.key is None else key_salt(self.key.id)


def store_context(scope: Scope, context: RequestContext) -> None:
    scope[_SCOPE_KEY] = context


def context_of(scope: Scope) -> RequestContext:
    context = scope[_SCOPE_KEY]
    assert isinstance(context, RequestContext)
    return context
