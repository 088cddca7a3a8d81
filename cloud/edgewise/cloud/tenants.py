"""Tenants: what each may ask for, and what it pays.

A tenant is the name of an API key, so that a key that replaces another one under the same name goes on with its jobs. A key
that is bound to a device makes that device the same tenant over HTTP and MQTT. Days are those of UTC.
Inside a class the queue serves the tenant with the fewest running jobs first, and the engine is fair by tenant.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from edgewise.cloud.jobs.reserve import Most
from edgewise.core.errors import NotAuthenticated, QueueFull

ANONYMOUS = "(anonymous)"
"""The tenant of loopback callers without a key; no key can have this name."""

_DAY_S = 86_400.0
_NOTHING = Most()
_ENDED = """
SELECT
    (SELECT count(*) FROM jobs WHERE tenant = :tenant AND received_at >= :day) AS requests, 0 AS concurrent,
    coalesce(sum(prompt_tokens + completion_tokens), 0) AS tokens, coalesce(sum(busy_s), 0) AS seconds,
    coalesce(sum(price), 0) AS price
FROM usage WHERE tenant = :tenant AND at >= :day
"""
_OPEN = """
SELECT
    0 AS requests, count(*) AS concurrent, coalesce(sum(most_tokens), 0) AS tokens, coalesce(sum(most_price), 0) AS price,
    coalesce(sum(max(most_seconds, busy_s + max(0, coalesce((
        SELECT :now - began_at FROM attempts
        WHERE attempts.job = jobs.id AND attempts.attempt = jobs.attempt AND ended_at IS NULL
    ), 0)))), 0) AS seconds
FROM jobs WHERE tenant = :tenant AND state IN ('queued', 'running')
"""
_WORDS: Mapping[str, str] = {
    "requests": "jobs a day",
    "concurrent": "jobs at once",
    "tokens": "tokens a day",
    "seconds": "seconds of computing a day",
    "price": "of money a day",
}
_COUNTS = frozenset({"requests", "concurrent"})
_REMEDIES: Mapping[str, str] = {"tokens": " Lower max_tokens, or shorten the prompt.", "price": " Lower max_tokens."}


class BoundKey(Protocol):
    """A key that is bound to a device, usable or not; implemented by `security.keys.KeyRecord`."""

    @property
    def name(self) -> str: ...

    def usable(self, now: float, /) -> bool: ...


class BoundKeys(Protocol):
    """Implemented by `security.keys.KeyStore`."""

    def of_device(self, device: str, /) -> BoundKey | None: ...


def tenant_of_device(keys: BoundKeys, uid: str, now: float) -> str:
    """The tenant of a device whose name a broker vouches for: that of the key which is bound to it. A device without one is a
    tenant of its own, under a name that no key can have.

    Raises:
        NotAuthenticated: Its key has expired or was revoked.
    """
    key = keys.of_device(uid)
    if key is None:
        return f"mqtt:{uid}"
    if not key.usable(now):
        raise NotAuthenticated(f"The key of the device '{uid}' has expired or was revoked: bind a new one to it.")
    return key.name


class Price(NamedTuple):
    """Per 1,000 prompt items, and items of the answer."""

    prompt: float = 0.0
    answer: float = 0.0


class Tenants:
    """Args:
    quotas, prices: As in the settings `intake.quotas` and `intake.prices`, which have checked them.
    max_queued: Jobs of all tenants that may wait.
    """

    def __init__(self, quotas: Iterable[str] = (), prices: Iterable[str] = (), *, max_queued: int = 1000) -> None:
        self._quotas: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for entry in quotas:
            name, _, limit = entry.rpartition("=")
            tenant, _, what = name.rpartition(".")
            self._quotas[tenant][what] = float(limit)
        self._prices = {
            model: Price(*map(float, numbers.split(",")))
            for model, _, numbers in (entry.rpartition("=") for entry in prices)
        }
        self._max_queued = max_queued

    def price(self, model: str) -> Price:
        return self._prices.get(model, Price())

    def streams(self, tenant: str) -> int | None:
        """Jobs whose streams it may read at once; None for any number."""
        limit = self._limits(tenant).get("streams")
        return None if limit is None else int(limit)

    def admit(self, db: sqlite3.Connection, tenant: str, now: float, queue_s: float, most: Most = _NOTHING) -> None:
        """Whether one more job may come in now. What jobs that wait and run may cost counts like what ended ones did cost.

        Args:
            now: Seconds since the epoch.
            queue_s: Estimated wait of a new job.
            most: What it may cost.

        Raises:
            QueueFull: The queue, or one of the tenant's quotas, is full.
        """
        queued = int(db.execute("SELECT count(*) FROM jobs WHERE state = 'queued'").fetchone()[0])
        if queued >= self._max_queued:
            raise QueueFull(
                f"{queued} jobs wait, which is this cloud's limit (intake.max_queued): try again later.",
                retry_after_s=max(1.0, queue_s),
            )
        limits = {what: limit for what, limit in self._limits(tenant).items() if what != "streams"}
        if not limits:
            return
        day = now - now % _DAY_S
        ended, running = (
            db.execute(query, {"tenant": tenant, "day": day, "now": now}).fetchone() for query in (_ENDED, _OPEN)
        )
        asked = {"requests": 1.0, "concurrent": 1.0, **most._asdict()}
        for what, limit in limits.items():
            used, held, own = float(ended[what]), float(running[what]), float(asked[what])
            if used + held < limit and used + held + own <= limit:
                continue
            full = used >= limit or what in _COUNTS
            settles = used < limit and used + own <= limit
            raise QueueFull(
                _used_up(tenant, what, limit) if full else _no_room(tenant, what, limit, held, own),
                retry_after_s=max(1.0, queue_s) if settles else day + _DAY_S - now,
                param=what,
            )

    def _limits(self, tenant: str) -> Mapping[str, float]:
        return {**self._quotas.get("*", {}), **self._quotas.get(tenant, {})}


def _used_up(tenant: str, what: str, limit: float) -> str:
    return f"The quota of '{tenant}' is used up: {limit:g} {_WORDS[what]}."


def _no_room(tenant: str, what: str, limit: float, held: float, own: float) -> str:
    """Of a job that has no room beside what the others may cost."""
    others = f", those that wait and run up to {held:g}" if held else ""
    return (
        f"The quota of '{tenant}' has no room for this job: of {limit:g} {_WORDS[what]} it may take up to {own:g}{others}."
        + _REMEDIES.get(what, "")
    )
