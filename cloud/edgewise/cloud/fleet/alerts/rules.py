"""What a rule says, and the rules that every fleet begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from edgewise.core.errors import InvalidRequest
from edgewise.wire.fleet import Severity

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.]{0,63}$")]
HoldS = Annotated[float, Field(ge=0, le=30 * 86_400)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Bounded(_Part):
    """Holds beyond a bound for `for_s`, and until the value is back behind `clear` (a twentieth inside the bound if unset)."""

    above: float | None = None
    below: float | None = None
    clear: float | None = None
    for_s: HoldS = 60.0

    @model_validator(mode="after")
    def _one_bound(self) -> _Bounded:
        if (self.above is None) == (self.below is None):
            raise ValueError("give above or below, one of them")
        if self.clear is not None and self.beyond(self.clear):
            raise ValueError("clear lies beyond the bound: it is where the alert ends")
        return self

    def beyond(self, value: float) -> bool:
        return value > self.above if self.above is not None else value < (self.below or 0.0)

    def back(self, value: float) -> bool:
        """Whether the alert is over at this value."""
        bound = self.above if self.above is not None else (self.below or 0.0)
        edge = self.clear
        if edge is None:
            edge = bound - abs(bound) / 20 if self.above is not None else bound + abs(bound) / 20
        return value <= edge if self.above is not None else value >= edge


class Gauge(_Bounded):
    """The newest value of telemetry, or a ratio of two ("memory_used", "/", "memory_total")."""

    kind: Literal["gauge"] = "gauge"
    value: Name
    of: Name | None = None


class Share(_Bounded):
    """How much of `among` is `value`, summed over a window; not looked at below `least` altogether."""

    kind: Literal["share"] = "share"
    value: Name
    among: Annotated[tuple[Name, ...], Field(min_length=1, max_length=10)]
    window_s: Annotated[float, Field(ge=60, le=7 * 86_400)] = 600.0
    least: Annotated[float, Field(ge=1)] = 20.0


class Rise(_Bounded):
    """The mean of the last ten minutes as a ratio to the device's own hourly mean of the week before (a day of it at least)."""

    kind: Literal["rise"] = "rise"
    value: Name


class Offline(_Part):
    """Gone without having said so."""

    kind: Literal["offline"] = "offline"
    for_s: HoldS = 60.0


class Certificate(_Part):
    """Days that the certificate of the device's key is still valid."""

    kind: Literal["certificate"] = "certificate"
    below_days: Annotated[float, Field(gt=0)] = 14.0


class OutOfSync(_Part):
    """A desired document was refused, or is not in force after so long."""

    kind: Literal["out-of-sync"] = "out-of-sync"
    for_s: HoldS = 3600.0


Condition = Annotated[Gauge | Share | Rise | Offline | Certificate | OutOfSync, Field(discriminator="kind")]
_CONDITION: TypeAdapter[Condition] = TypeAdapter(Condition)


class Receiver(_Part):
    """Where an alert goes: a webhook (`fleet.webhook_hosts` names those at private addresses) or a mailbox."""

    webhook: Annotated[str, Field(pattern=r"^https?://\S+$", max_length=2000)] | None = None
    mail: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$", max_length=254)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Receiver:
        if (self.webhook is None) == (self.mail is None):
            raise ValueError("give webhook or mail, one of them")
        return self


class Rule(_Part):
    """A rule as people write it; `query` says for which devices, all if empty."""

    id: str | None = None
    name: Annotated[str, Field(min_length=1, max_length=128)]
    query: Annotated[str, Field(max_length=2000)] = ""
    condition: Condition
    severity: Severity = "warning"
    deliver: Annotated[tuple[Receiver, ...], Field(max_length=20)] = ()
    enabled: bool = True


def read_rule(rule: Mapping[str, Any]) -> Rule:
    """Raises `InvalidRequest` that names the field."""
    try:
        return Rule.model_validate(rule)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in problem["loc"]) or "rule"
        raise InvalidRequest(f"{place}: {problem['msg']}", param=place) from error


def read_condition(condition: Mapping[str, Any]) -> Condition:
    """Of a row, which was checked when it was written."""
    return _CONDITION.validate_python(condition)


DEFAULTS: tuple[Rule, ...] = (
    Rule(name="offline", condition=Offline(for_s=60), severity="critical"),
    Rule(name="memory 80 %", condition=Gauge(value="memory_used", of="memory_total", above=0.8)),
    Rule(name="memory 90 %", condition=Gauge(value="memory_used", of="memory_total", above=0.9), severity="critical"),
    Rule(name="fragmentation 15 %", condition=Gauge(value="kv_fragmentation", above=0.15, for_s=300)),
    Rule(name="first token later than usual", condition=Rise(value="ttft_p99_ms", above=1.2, for_s=600)),
    Rule(name="tokens slower than usual", condition=Rise(value="itl_p99_ms", above=1.2, for_s=600)),
    Rule(
        name="fewer than 99 % succeed",
        condition=Share(value="requests_failed", among=("requests_ok", "requests_failed"), above=0.01),
    ),
    Rule(
        name="over 1 % time out",
        condition=Share(value="requests_timed_out", among=("requests_ok", "requests_failed"), above=0.01),
    ),
    Rule(name="hot", condition=Gauge(value="temperature_c", above=80, clear=75)),
    Rule(name="throttled", condition=Gauge(value="throttled", above=0.5, for_s=30), severity="critical"),
    Rule(name="disk almost full", condition=Gauge(value="disk_free", below=2.0 * 2**30, clear=3.0 * 2**30)),
    Rule(name="certificate", condition=Certificate(below_days=14)),
    Rule(name="not as desired", condition=OutOfSync(for_s=3600)),
)
"""Bounds that public guides of inference operations name; every one can be changed or switched off."""
