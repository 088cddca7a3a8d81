"""The database on both kinds: its schema by migrations, its units of work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, select, text
from sqlalchemy.orm import Session

from edgewise.cloud.fleet import audit
from edgewise.cloud.fleet.db.database import DatabaseAway, FleetDatabase
from edgewise.cloud.fleet.db.migrate import migrate
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, AuditRow, Base, Device, Tenant
from edgewise.core.errors import ConfigError, InvalidRequest, StorageError
from tests.cloud.fleet.bench import ADMIN


async def test_the_migrations_make_the_tables_that_the_code_has(db: FleetDatabase) -> None:
    with db.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


async def test_every_version_is_upgraded_to_the_newest_with_its_rows(url: str) -> None:
    db = FleetDatabase(url)
    await migrate(db, "0001")
    assert "audit" not in inspect(db.engine).get_table_names()
    device = Device(uid="d1", tenant_id=FIRST_TENANT, name="one", created_at=1.0)
    await db.write(lambda session: session.add(device))
    await migrate(db)
    await migrate(db)  # nothing is left to do
    assert await db.read(lambda session: session.scalars(select(Device.name)).all()) == ["one"]
    assert await db.read(lambda session: session.scalars(select(Tenant.id)).all()) == [FIRST_TENANT]
    db.close()


async def test_the_schema_of_a_later_version_is_refused(url: str) -> None:
    db = FleetDatabase(url)
    await migrate(db)
    await db.write(lambda session: session.execute(text("UPDATE alembic_version SET version_num = 'later'")))
    with pytest.raises(ConfigError, match="later version"):
        await migrate(db)
    db.close()


async def test_what_fails_leaves_nothing(db: FleetDatabase) -> None:
    def work(session: Session) -> None:
        session.add(Device(uid="d1", tenant_id=FIRST_TENANT, created_at=1.0))
        session.flush()
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        await db.write(work)
    assert await db.read(lambda session: session.scalars(select(Device.uid)).all()) == []


async def test_a_read_sees_one_state_throughout(db: FleetDatabase) -> None:
    """Two statements of one read agree, though a write comes between them."""
    inside, written = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def look(session: Session) -> tuple[int, int]:
        first = len(session.scalars(select(Device.uid)).all())
        loop.call_soon_threadsafe(inside.set)
        asyncio.run_coroutine_threadsafe(written.wait(), loop).result(30)
        return first, len(session.scalars(select(Device.uid)).all())

    looking = asyncio.create_task(db.read(look))
    await inside.wait()
    await db.write(lambda session: session.add(Device(uid="d1", tenant_id=FIRST_TENANT, created_at=1.0)))
    written.set()
    assert await looking == (0, 0)
    assert len(await db.read(lambda session: session.scalars(select(Device.uid)).all())) == 1


async def test_writers_of_the_audit_log_never_break_its_chain(db: FleetDatabase) -> None:
    """On PostgreSQL they really meet: each waits for the one before it."""
    await asyncio.gather(
        *(db.write(lambda session, n=n: audit.record(session, ADMIN, "test.do", str(n)) and None) for n in range(24))  # type: ignore[misc]
    )
    rows = await db.read(lambda session: session.scalars(select(AuditRow).order_by(AuditRow.number)).all())
    assert [row.number for row in rows] == list(range(1, 25))
    before = audit.FIRST
    for row in rows:
        assert row.digest == audit.digest(row, before)
        before = row.digest


async def test_two_services_that_start_at_once_migrate_one_after_the_other(url: str) -> None:
    first, second = FleetDatabase(url), FleetDatabase(url)
    await asyncio.gather(migrate(first), migrate(second))
    with first.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    first.close()
    second.close()


@pytest.mark.parametrize("url", ["nonsense", "mysql://host/db"])
def test_another_kind_of_database_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigError, match=r"fleet\.database"):
        FleetDatabase(url)


async def test_a_database_that_is_not_reached_is_a_storage_error(tmp_path: Path) -> None:
    db = FleetDatabase(f"postgresql+psycopg://nobody@/none?host={tmp_path}")
    with pytest.raises(DatabaseAway, match="not reached"):
        await db.read(lambda session: session.scalar(select(1)))
    db.close()


@pytest.mark.parametrize("state", ["53100", "58030"])
async def test_a_database_that_refuses_is_not_away(migrated_url: str, state: str) -> None:
    """A full disk, a disk that fails: as PostgreSQL says it, over a connection that stays."""
    db = FleetDatabase(migrated_url)
    block = f"DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '{state}'; END $$"
    with pytest.raises(StorageError, match="refuses: could not extend") as caught:
        await db.write(lambda session: session.execute(text(block)))
    assert not isinstance(caught.value, DatabaseAway)
    assert caught.value.http_status == 507
    db.close()


def test_a_password_in_the_url_is_not_shown() -> None:
    db = FleetDatabase("postgresql+psycopg://me:secret@host/db")
    assert "secret" not in repr(db)
    db.close()


async def test_what_a_database_cannot_store_is_a_refusal(db: FleetDatabase) -> None:
    device = Device(uid="d1", tenant_id=FIRST_TENANT, name="with\0nul", created_at=1.0)
    if db.sqlite:
        await db.write(lambda session: session.add(device))
    else:
        with pytest.raises(InvalidRequest, match="cannot store"):
            await db.write(lambda session: session.add(device))
