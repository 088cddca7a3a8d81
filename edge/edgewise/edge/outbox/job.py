"""One deferred job: what was asked, how far it is, what came of it, and whether that has arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgewise.core.priority import PriorityName
from edgewise.core.privacy import PrivacyName
from edgewise.pipeline.plan import Place, PolicyName
from edgewise.wire.messages import TERMINAL, State

DeliveryState = Literal["none", "pending", "delivered", "failed"]
"""Of a result: nobody is told ("none": it waits to be asked for), still to be sent, acknowledged, or given up."""

POLL = "poll"
MQTT = "mqtt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a caller leaves here.

    Attributes:
        owner: Whose it is (`api.context.RequestContext.salt`).
        url: Path of the route that would answer `body` at once.
        deliver: "poll", "mqtt" or the URL of a webhook.
        key: Idempotency key among the owner's jobs; None for none.
        privacy: Strictest label that is known from the request's key and headers; None where neither has one.
        allowed: Places where it may run; empty for all.
        seed: Of its answer, so that a second try gives the same one.
        ttl_s: Seconds after which it is expired.
    """

    owner: str
    url: str
    body: Mapping[str, Any]
    deliver: str = POLL
    key: str | None = None
    priority: PriorityName = "background"
    privacy: PrivacyName | None = None
    policy: PolicyName | None = None
    allowed: tuple[Place, ...] = ()
    seed: int = 0
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An order as the table has it. Times in seconds since the epoch.

    Attributes:
        body: None once the job has ended: the prompt is not kept longer than it is needed.
        waiting: Why a queued job that was tried has no answer yet.
        next_at: It is not tried before.
        tries: How often it was begun; `crashes` of them ended with a crash of the service, `breaks` with what may pass.
        response: `status_code` and `body` as the route would have answered; None until it has ended.
        sends, send_at, send_error: Tries to deliver the result, when the next one is due, why the last one failed.
    """

    id: str
    owner: str
    url: str
    body: Mapping[str, Any] | None
    deliver: str
    key: str | None
    priority: PriorityName
    privacy: PrivacyName | None
    policy: PolicyName | None
    allowed: tuple[Place, ...]
    seed: int
    state: State
    waiting: str | None
    created_at: float
    expires_at: float
    next_at: float
    tries: int
    crashes: int
    breaks: int
    started_at: float | None
    ended_at: float | None
    response: Mapping[str, Any] | None
    delivery: DeliveryState
    sends: int
    send_at: float | None
    send_error: str | None
    delivered_at: float | None

    @property
    def request_id(self) -> str:
        """What its request is called: after a crash the same, so that a cloud that has it goes on with it; after a break another,
        for the old one was called off."""
        return f"{self.id}.{self.breaks}" if self.breaks else self.id

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL
