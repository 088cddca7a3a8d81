"""What an operation is: how its arguments are checked, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from edgewise.core.errors import EdgewiseError, InvalidRequest
from edgewise.edge.agent.commands.record import Lane

DAY_S = 86_400.0


class Args(BaseModel):
    """Arguments of an operation. One that is not known is refused: it would be believed to be in force."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Call(Protocol):
    """A command under way, as its operation sees it."""

    @property
    def id(self) -> str: ...

    @property
    def args(self) -> Mapping[str, Any]:
        """As they arrived, checked."""

    @property
    def earlier(self) -> Mapping[str, Any] | None:
        """What was written down before the service was started again; None if nothing was."""

    async def note(self, facts: Mapping[str, Any]) -> None:
        """Write facts down; they are on disk when this returns."""

    async def progress(self, step: str, percent: float | None = None) -> None:
        """It is so far. The timer of a step begins anew if that is further than before."""

    async def piece(self, text: str) -> None:
        """Send a piece of an answer; waits while its receiver has granted no credit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One of the commands that a device understands.

    Attributes:
        check: Refuses arguments with an `EdgewiseError` that names the field; quick, and without any effect.
        run: Does it; what it returns is the result. An `EdgewiseError` is the reason of a failure.
        repeatable: It may be begun again after the service was killed in the middle of it. One that may not has failed then,
            unless `resume` says how it goes on.
        resume: Goes on after a new start.
        total_s, step_s: The timers, where a command names none.
    """

    name: str
    lane: Lane
    check: Callable[[Mapping[str, Any]], None]
    run: Callable[[Call], Awaitable[dict[str, Any]]]
    repeatable: bool = False
    resume: Callable[[Call], Awaitable[dict[str, Any]]] | None = None
    total_s: float = 600.0
    step_s: float = 600.0


class Interrupted(EdgewiseError):
    """The service was ended in the middle of it: whether it had its effect is not known."""

    code = "interrupted"
    http_status = 503
    retryable = True


class UnknownOperation(InvalidRequest):
    code = "unknown_op"


class Unsigned(EdgewiseError):
    """Software is accepted with signed metadata only."""

    code = "unsigned"
    http_status = 403


def checked(schema: type[Args]) -> Callable[[Mapping[str, Any]], None]:
    """A check by a schema."""

    def check(args: Mapping[str, Any]) -> None:
        parse(schema, args)

    return check


def parse(schema: type[Args], args: Mapping[str, Any]) -> Any:
    """The arguments as their schema.

    Raises:
        InvalidRequest: It names the first field that is wrong.
    """
    try:
        return schema.model_validate(args)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(str(part) for part in first["loc"]) or "args"
        raise InvalidRequest(f"The argument '{param}' is refused: {first['msg']}.", param=param) from error
