"""How often passwords may be guessed, counted in the database: over restarts, and for all services over it together."""

from __future__ import annotations

import hashlib

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import LoginTry
from edgewise.cloud.fleet.people.tries import WINDOW_S, too_many
from edgewise.core.clock import Clock


class LoginTries:
    """As `tries.Tries`. Keys are stored as SHA-256: people type passwords where names belong.

    Args:
        limit: Tries of one key within `WINDOW_S`.
    """

    def __init__(self, db: FleetDatabase, limit: int, clock: Clock) -> None:
        self._db, self._limit, self._clock = db, limit, clock

    async def take(self, *keys: str) -> None:
        """Count a try of each key.

        Raises:
            RateLimited: One of them has had its tries; none is counted.
        """
        now = self._clock.time()

        def work(session: Session) -> None:
            rows = _locked(session, keys)
            for row in rows:
                row.tries = [at for at in row.tries if 0 <= now - at < WINDOW_S]  # a clock that was set back forgives
                if len(row.tries) >= self._limit:
                    raise too_many(self._limit, row.tries[0] + WINDOW_S - now)
            for row in rows:
                row.tries, row.until = [*row.tries, now], now + WINDOW_S

        await self._db.write(work)

    async def give_back(self, *keys: str) -> None:
        """The last try of these keys was right."""

        def work(session: Session) -> None:
            for row in _locked(session, keys):
                row.tries = row.tries[:-1]

        await self._db.write(work)


def _locked(session: Session, keys: tuple[str, ...]) -> list[LoginTry]:
    """A row for each key, for this transaction alone; in one order, so that two never wait for each other."""
    digests = sorted(hashlib.sha256(key.encode("utf-8", "replace")).digest() for key in set(keys))
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    new = [{"digest": digest, "tries": [], "until": 0.0} for digest in digests]
    session.execute(insert(LoginTry).on_conflict_do_nothing(), new)
    query = select(LoginTry).where(LoginTry.digest.in_(digests)).order_by(LoginTry.digest).with_for_update()
    return list(session.scalars(query))
