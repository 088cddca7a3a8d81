"""`policy`: how often the device tells of itself, how many bytes that may take, its labels, and whether it may restart itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from edgewise.core.errors import InvalidRequest
from edgewise.edge.twin.shadow import Applied, Document, Report, Shown
from edgewise.wire.fleet import Shadow


class _Part(BaseModel):
    """Fields of later versions are kept and ignored."""

    model_config = ConfigDict(frozen=True, extra="allow")


class TelemetryPolicy(_Part):
    """Attributes:
    period_s: Seconds between samples; None takes what the device has configured.
    groups: Groups that are sent; None for all.
    """

    period_s: float | None = Field(default=None, ge=1.0, le=3600.0)
    groups: tuple[str, ...] | None = None


class Budgets(_Part):
    daily_bytes: NonNegativeInt | None = None


class Policy(_Part):
    """The document.

    Attributes:
        restart: Whether the service may drain and restart by itself for a configuration that needs it.
    """

    telemetry: TelemetryPolicy = TelemetryPolicy()
    budgets: Budgets = Budgets()
    labels: dict[str, str] = Field(default_factory=dict, max_length=200)
    restart: Literal["auto", "ask"] = "ask"


class PolicyPart:
    """Args:
    in_force: Called with each policy that is, also after a start.
    """

    name: Shadow = "policy"

    def __init__(self, in_force: Callable[[Policy], None]) -> None:
        self._in_force = in_force
        self._document: dict[str, Any] = {}
        self.policy = Policy()

    def check(self, document: Document) -> None:
        _read(document)

    async def apply(self, gen: int, document: Document, report: Report) -> Applied:
        del gen, report
        self.policy = _read(document)
        self._document = dict(document)
        self._in_force(self.policy)
        return Applied()

    async def show(self) -> Shown:
        return Shown(self._document)


def _read(document: Document) -> Policy:
    try:
        return Policy.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"policy: `{place}`: {first['msg']}.", param=place) from error
