"""What a worker asks of a back end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgewise.core.priority import Priority
from edgewise.wire.messages import Capability, Finish, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One attempt at a job.

    Attributes:
        job, attempt: Which.
        work: As the device asked.
        tokens: Everything that is in the job's log already, `work.output` first: the back end continues after it.
        text: The same for a back end that knows characters only.
        media: Bytes of the blobs that the work names, by hash.
        tenant: Salt of prefix caches and key of fairness.
    """

    job: str
    attempt: int
    work: Work
    tokens: tuple[int, ...] = ()
    text: str = ""
    media: Mapping[str, bytes] = field(default_factory=dict)
    tenant: str = ""
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """The next items of a stream, with `finish` on the last of them.

    Attributes:
        count: Items: tokens, characters or steps.
        pictures: Finished results of a `diffuse` job with their media types; on the last one only.
        facts: The engine's account so far, plain data.
        error_code, retryable: With finish "error": whether another attempt may help.
    """

    count: int
    tokens: tuple[int, ...] | None = None
    text: str | None = None
    logprobs: tuple[Any, ...] | None = None
    preview: bytes | None = None
    pictures: tuple[tuple[str, bytes], ...] = ()
    finish: Finish | None = None
    facts: dict[str, Any] | None = None
    numeric_class: str | None = None
    precision: dict[str, str] | None = None
    error_code: str | None = None
    error_message: str | None = None
    retryable: bool = False


class Executor(Protocol):
    """A back end. One instance for the service's life."""

    def start(self) -> None:
        """Begin; returns at once."""

    async def stop(self) -> None: ...

    async def capabilities(self) -> Sequence[Capability]:
        """Models that can be asked now."""

    def run(self, order: Order) -> AsyncIterator[Produced]:
        """Work an order off from where its log ends; closing the iterator cancels it within one step.

        Raises:
            EdgewiseError: It could not be begun, or broke; `retryable` says whether another attempt may help.
        """
