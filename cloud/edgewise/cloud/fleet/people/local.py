"""The first admin, and whoever has lost every login: straight into the database of this machine's fleet service."""

from __future__ import annotations

from edgewise.cloud.fleet.actor import ROLES, Actor, Role
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.db.database import FleetDatabase, sqlite_url
from edgewise.cloud.fleet.db.migrate import migrate
from edgewise.cloud.fleet.db.tables import FIRST_TENANT
from edgewise.cloud.fleet.people.service import PeopleService, ensure_tenant
from edgewise.cloud.fleet.views import UserView
from edgewise.core.clock import SystemClock
from edgewise.core.errors import InvalidRequest
from edgewise.core.files import make_folder, own_like_parent
from edgewise.core.settings_schema import Settings


async def add_user_locally(
    settings: Settings, name: str, password: str | None, role: str, tenant: str | None = None
) -> UserView:
    """Add a user of the first tenant, or of another one, which is made if it is new; beside a running service or without one.

    Raises:
        InvalidRequest: The name is taken or malformed, the role unknown, the password too short.
        StorageError: The database refuses.
    """
    wanted: Role | None = next((known for known in ROLES if known == role), None)
    if wanted is None:
        raise InvalidRequest(f"The role {role[:40]!r} is unknown: choose from {', '.join(ROLES)}.", param="role")
    make_folder(settings.home, mode=0o750)
    path = settings.home / "fleet.db"
    db = FleetDatabase(settings.fleet.database or sqlite_url(path))
    people = PeopleService(db, Changes(), settings.fleet)
    try:
        await migrate(db)
        now = SystemClock().time()
        owner = await db.write(lambda session: ensure_tenant(session, tenant or FIRST_TENANT, now=now))
        actor = Actor(tenant=owner, name="root of this machine", role="admin", via="local")
        return await people.add_user(actor, name, password, wanted)
    finally:
        people.close()
        db.close()
        if path.exists():
            for file in (path, path.with_name("fleet.db-wal"), path.with_name("fleet.db-shm")):
                if file.exists():
                    own_like_parent(file)
