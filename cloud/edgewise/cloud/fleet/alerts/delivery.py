"""Brings alerts to their receivers. What is owed stands in the alert's row, so nothing is forgotten and nothing told twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.alerts.mail import Mailer
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Alert, AlertRule, Device
from edgewise.core.errors import EdgewiseError, InvalidRequest, SourceUnavailable
from edgewise.core.log import get_logger

log = get_logger(__name__)

_FIRST_S, _LONGEST_S, _GIVE_UP_S = 5.0, 1800.0, 86_400.0


class Sender(Protocol):
    """As `security.webhook.WebhookSender`."""

    async def send(self, url: str, id: str, message: bytes) -> int: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Owed:
    alert: Mapping[str, Any]
    index: int
    entry: Mapping[str, Any]


def owe(receivers: Sequence[Mapping[str, Any]], what: str, now: float) -> list[dict[str, Any]]:
    """Entries of `Alert.delivered`: one for each receiver that is to hear that the alert was "raised" or "cleared"."""
    return [
        {"to": dict(to), "what": what, "at": now, "due": now, "tries": 0, "done": None, "error": ""} for to in receivers
    ]


class Delivery:
    """Args:
    webhooks: Posts.
    mailer: Sends mail; None where no mail server is configured.
    url: Of the console, for links.
    """

    def __init__(self, db: FleetDatabase, webhooks: Sender, mailer: Mailer | None, url: str) -> None:
        self._db, self._webhooks, self._mailer, self._url = db, webhooks, mailer, url

    async def deliver(self, now: float) -> int:
        """Try all that are due; how many were."""
        owed = await self._db.read(lambda session: _due(session, now))
        for one in owed:
            try:
                await self._send(one)
                outcome: dict[str, Any] = {"done": now, "error": ""}
            except EdgewiseError as error:
                log.warning("alert_not_delivered", alert=one.alert["id"], reason=error.message)
                outcome = _again(one.entry, error, now)
            await self._db.write(lambda session, one=one, outcome=outcome: _note(session, one, outcome))  # type: ignore[misc]
        return len(owed)

    async def close(self) -> None:
        await self._webhooks.close()

    async def _send(self, one: _Owed) -> None:
        to, what = one.entry["to"], one.entry["what"]
        id = f"{one.alert['id']}-{what}"
        if to.get("webhook"):
            body = {
                "type": f"edgewise.alert.{what}",
                "timestamp": one.entry["at"],
                "data": {**one.alert, "url": self._url},
            }
            status = await self._webhooks.send(to["webhook"], id, json.dumps(body).encode())
            if not 200 <= status < 300:
                raise SourceUnavailable(f"The receiver answered {status}.")
            return
        if self._mailer is None:
            raise InvalidRequest("No mail server is configured: set fleet.smtp_url and fleet.mail_from.")
        sign = "over" if what == "cleared" else one.alert["severity"]
        subject = f"[{sign}] {one.alert['device']}: {one.alert['rule']}"
        await self._mailer.send(to["mail"], subject, f"{one.alert['message']}\n\n{self._url}\n", id)


def _due(session: Session, now: float) -> list[_Owed]:
    recent = (Alert.raised_at >= now - 2 * _GIVE_UP_S) | (Alert.cleared_at >= now - 2 * _GIVE_UP_S)
    found = []
    for alert, rule in session.execute(select(Alert, AlertRule.name).join(AlertRule).where(recent)):
        for index, entry in enumerate(alert.delivered):
            if entry["done"] is None and entry["due"] <= now:
                found.append(_Owed(_shown(session, alert, rule), index, entry))
    return found


def _shown(session: Session, alert: Alert, rule: str) -> dict[str, Any]:
    device = None if alert.uid is None else session.get(Device, alert.uid)
    names = ("id", "uid", "severity", "message", "value", "raised_at", "cleared_at")
    name = "the fleet" if device is None else device.name or device.uid
    return {"rule": rule, "device": name, **{field: getattr(alert, field) for field in names}}


def _again(entry: Mapping[str, Any], error: EdgewiseError, now: float) -> dict[str, Any]:
    """A later try, twice as late each time; after a day none."""
    tries = entry["tries"] + 1
    given_up = now - entry["at"] > _GIVE_UP_S
    due = now + min(_LONGEST_S, _FIRST_S * 2.0 ** min(tries - 1, 20))
    return {"tries": tries, "due": due, "error": error.message, "done": now if given_up else None}


def _note(session: Session, one: _Owed, outcome: Mapping[str, Any]) -> None:
    row = session.get(Alert, one.alert["id"])
    if row is not None:
        row.delivered = [
            {**entry, **outcome} if index == one.index else entry for index, entry in enumerate(row.delivered)
        ]
