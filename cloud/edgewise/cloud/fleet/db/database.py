"""The database as the fleet's coroutines use it: units of work that run outside the event loop, one transaction each.

SQLite has one writer: its write units run on one thread, in the order in which they were asked for, and never meet. PostgreSQL
has its own locks, and both kinds run on a pool. What a caller was told is written survives a power cut (WAL with full
synchronisation; PostgreSQL's default).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from edgewise.core.errors import ConfigError, InvalidRequest, StorageError
from edgewise.core.log import get_logger

log = get_logger(__name__)

Result = TypeVar("Result")
_READERS = 4
_BUSY_S = 10.0
_TRIES = 4  # of a transaction that PostgreSQL ended because it met another
_MET_ANOTHER = ("40001", "40P01")  # serialization failure, deadlock
_AWAY = ("57P01", "57P02", "57P03", "53300")  # shut down, crashed, starting; all connections taken
_AWAY_S, _CONNECT_S = 5.0, 10
_WRITES = "fleet_writes"


class NotStorable(InvalidRequest):
    """A value that this kind of database has no place for, as a NUL character in a text of PostgreSQL."""


class DatabaseAway(StorageError):
    """The database cannot be reached now. A write that was under way may have taken effect, or not."""

    code = "database_unavailable"
    http_status = 503
    retryable = True


class FleetDatabase:
    """Open until `close`; the schema is brought up to date by `migrate` before anything else.

    Args:
        url: Of SQLAlchemy; `sqlite_url` makes that of a file.

    Raises:
        ConfigError: The URL cannot be read or names another kind of database.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except SQLAlchemyError as error:
            raise ConfigError(f"fleet.database: {error}") from error
        kind = parsed.get_backend_name()
        if kind not in ("sqlite", "postgresql"):
            raise ConfigError(f"fleet.database: {kind} is not supported; use SQLite or postgresql+psycopg://")
        self.sqlite = kind == "sqlite"
        self.engine = create_engine(parsed, **({} if self.sqlite else _postgresql(parsed)))
        if self.sqlite:
            event.listen(self.engine, "connect", _set_up_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            self._reading = self.engine
        else:
            self._reading = self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._writing = self.engine.execution_options(**{_WRITES: True})
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="fleet-read")
        self._writers = ThreadPoolExecutor(1 if self.sqlite else _READERS, thread_name_prefix="fleet-write")

    def __repr__(self) -> str:
        return f"FleetDatabase({self.engine.url.render_as_string(hide_password=True)!r})"

    async def read(self, work: Callable[[Session], Result]) -> Result:
        """What `work` returns of a consistent view; it must not write. Return plain values: objects of the session are detached.

        Raises:
            DatabaseAway: It is not reached.
            StorageError: It refuses: its disk is full, for instance.
        """
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._transact, work, False)

    async def write(self, work: Callable[[Session], Result]) -> Result:
        """Do `work` in one transaction; it is on disk when this returns, or nothing of it is. PostgreSQL may end one that meets
        another: then it is done anew, so `work` has no effects but those on its session.

        Raises:
            NotStorable: A value cannot be stored.
            DatabaseAway, StorageError: As above; `EdgewiseError`s of `work` itself pass through and undo it.
        """
        return await asyncio.get_running_loop().run_in_executor(self._writers, self._transact, work, True)

    def close(self) -> None:
        """Waits for what is running."""
        self._readers.shutdown()
        self._writers.shutdown()
        self.engine.dispose()

    def _transact(self, work: Callable[[Session], Result], commit: bool) -> Result:
        for left in reversed(range(_TRIES)):
            try:
                with Session(self._writing if commit else self._reading, expire_on_commit=False) as session:
                    result = work(session)
                    if commit:
                        session.commit()
                    return result
            except DataError as error:
                raise NotStorable(f"The database cannot store this: {str(error.orig)[:200]}") from error
            except DBAPIError as error:
                if left and getattr(error.orig, "sqlstate", None) in _MET_ANOTHER:
                    continue
                if not self.sqlite and _is_away(error):
                    raise DatabaseAway(
                        f"The fleet's database is not reached: {error.orig}", retry_after_s=_AWAY_S
                    ) from error
                if isinstance(error, OperationalError | InterfaceError):
                    raise StorageError(f"The fleet's database refuses: {error.orig}") from error
                raise
        raise AssertionError("unreachable: the last try returns or raises")


def sqlite_url(path: Path) -> str:
    """The URL of a database file."""
    return f"sqlite:///{path}"


def _postgresql(url: URL) -> dict[str, Any]:
    """How its connections are kept. A host that does not answer is away, unless the URL says how long to wait."""
    waits = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_S}
    return {"pool_size": 2 * _READERS, "pool_pre_ping": True, "connect_args": waits}


def _is_away(error: DBAPIError) -> bool:
    """Whether there is no connection, rather than a refusal over one: class 08 of SQLSTATE, or none at all from a connect."""
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        return isinstance(error, OperationalError | InterfaceError)
    return state.startswith("08") or state in _AWAY


def _set_up_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins; the module would do it only before a write
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={int(_BUSY_S * 1000)}",
        "case_sensitive_like=ON",  # as in PostgreSQL
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """A read sees one state of the database throughout; a write takes the lock before it reads, so that it never fails late."""
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
