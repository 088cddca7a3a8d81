"""Brings a database to the schema of this software, at start."""

from __future__ import annotations

import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, Tenant
from edgewise.core.errors import ConfigError
from edgewise.core.log import get_logger

log = get_logger(__name__)

_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x65646765  # any number of our own: two services that start at once migrate one after the other


async def migrate(db: FleetDatabase, version: str = "head") -> None:
    """Upgrade to a version, the newest by default, in one transaction; and make the first tenant.

    Raises:
        ConfigError: A later software has upgraded the database.
        StorageError: The database refuses.
    """
    await db.write(lambda session: _upgrade(session, version, sqlite=db.sqlite))


def alembic_config(connection: Connection) -> Config:
    """Alembic on this connection, with the versions of this package."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _upgrade(session: Session, version: str, *, sqlite: bool) -> None:
    connection = session.connection()
    if not sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    config = alembic_config(connection)
    before = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if before is not None and before not in known:
        raise ConfigError(
            f"fleet.database: its schema is {before}, of a later version of Edgewise than this one. Update Edgewise, or restore "
            "a backup from before."
        )
    command.upgrade(config, version)
    after = MigrationContext.configure(connection).get_current_revision()
    if before != after:
        log.info("fleet_database_migrated", before=before, after=after)
    if session.get(Tenant, FIRST_TENANT) is None:
        session.add(Tenant(id=FIRST_TENANT, name=FIRST_TENANT, created_at=time.time()))
