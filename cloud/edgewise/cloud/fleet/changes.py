"""Tells whoever looks that something changed, so that open pages and streams need not poll. Nothing is kept here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """Of a row: `kind` is "device", "shadow", "command", "telemetry", "rollout", "alert", "event", "group", "key", "code",
    "user" or "token"; `id` is its key, that of the device for "shadow", "telemetry" and "event", "" for many rows."""

    tenant: str
    kind: str
    id: str = ""


class Subscription:
    """What has changed since the last look; each change once. If too many wait, `lost` says that everything may have changed."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.lost = False
        self._waiting: dict[Change, None] = {}
        self._some = asyncio.Event()

    def add(self, change: Change) -> None:
        if len(self._waiting) >= _WAITING:
            self.lost = True
        else:
            self._waiting[change] = None
        self._some.set()

    async def next(self) -> list[Change]:
        """Waits for at least one."""
        await self._some.wait()
        self._some.clear()
        changes, self._waiting = list(self._waiting), {}
        return changes


class Changes:
    """Used in the event loop only."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def publish(self, *changes: Change) -> None:
        for change in changes:
            for subscription in self._subscriptions:
                if subscription.tenant == change.tenant:
                    subscription.add(change)

    @contextmanager
    def subscribe(self, tenant: str) -> Iterator[Subscription]:
        """All changes of a tenant while the block runs."""
        subscription = Subscription(tenant)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
