"""The fleet's services over a real database, with a recording double in the place of the broker and a clock that tests set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel
from sqlalchemy import insert, text

from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.attendance import Attendance
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.commands.service import CommandService
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import FIRST_TENANT, Base, Tenant
from edgewise.cloud.fleet.downlink import Downlink
from edgewise.cloud.fleet.events import receive as receive_event
from edgewise.cloud.fleet.ingest import Ingest
from edgewise.cloud.fleet.metrics import FleetMetrics
from edgewise.cloud.fleet.registry import DeviceRegistry, add_device
from edgewise.cloud.fleet.shadows import ShadowService
from edgewise.cloud.fleet.syncs import Synced, Syncs
from edgewise.cloud.fleet.telemetry.keeper import TelemetryKeeper
from edgewise.cloud.fleet.telemetry.store import TelemetryStore
from edgewise.core.clock import FakeClock
from edgewise.core.errors import LinkLost
from edgewise.core.metrics import Metrics
from edgewise.core.settings_fleet import FleetSettings
from edgewise.wire import topics
from edgewise.wire.envelope import Envelope, encode, new_ulid
from edgewise.wire.fleet import Ack, Birth, Command, CommandState, Control, Desired, Live, Sync
from edgewise.wire.mqtt.connection import Incoming

ADMIN = Actor(tenant=FIRST_TENANT, name="ada", role="admin", via="test")
OPERATOR = Actor(tenant=FIRST_TENANT, name="otto", role="operator", via="test")
VIEWER = Actor(tenant=FIRST_TENANT, name="vera", role="viewer", via="test")
STRANGER = Actor(tenant="other", name="mallory", role="admin", via="test")
"""Of another tenant, which `Bench.other_tenant` makes."""


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Returns once it holds; fails if it never does. Looks again and again: what changes it tells nobody."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        await asyncio.sleep(0.002)


class FakeDownlink:
    """Test double of `Downlink`: keeps what was sent; `up` false is a broker that is not there."""

    def __init__(self) -> None:
        self.up = True
        self.commands: list[tuple[str, str, Command, int | None]] = []
        self.controls: list[tuple[str, str, Control]] = []
        self.documents: list[tuple[str, str, Desired]] = []
        self.acknowledged: list[str] = []
        self.forgotten: list[str] = []

    @property
    def connected(self) -> bool:
        return self.up

    async def command(self, uid: str, id: str, command: Command, ttl_ms: int | None, key: str | None) -> None:
        self._check()
        self.commands.append((uid, id, command, ttl_ms))

    async def control(self, uid: str, id: str, control: Control) -> None:
        self._check()
        self.controls.append((uid, id, control))

    async def desired(self, uid: str, shadow: str, desired: Desired) -> None:
        self._check()
        self.documents.append((uid, shadow, desired))

    async def received(self, uid: str, ids: Sequence[str]) -> None:
        self._check()
        self.acknowledged += ids

    async def forget(self, uid: str) -> None:
        self._check()
        self.forgotten.append(uid)

    def _check(self) -> None:
        if not self.up:
            raise LinkLost("the broker is not there (test)")

    def sent(self, id: str) -> int:
        """How often a command was sent."""
        return sum(one[1] == id for one in self.commands)

    def asked_to(self, do: str) -> list[str]:
        """Ids of the commands that were controlled so."""
        return [id for _, id, control in self.controls if control.do == do]


class Bench:
    """What `app.FleetService` puts together, but for link and HTTP."""

    def __init__(self, db: FleetDatabase, *, settings: FleetSettings | None = None, gather_s: float = 0.0) -> None:
        settings = settings or FleetSettings()
        self.db = db
        self.clock = FakeClock()
        self.changes = Changes()
        self.down = FakeDownlink()
        downlink = cast(Downlink, self.down)
        self.values = Metrics(process=False)
        self.metrics = FleetMetrics(self.values)
        self.ingest = Ingest(db, self.changes, self.down.received, self.metrics, clock=self.clock, gather_s=gather_s)
        self.attendance = Attendance(db, self.changes, grace_s=settings.grace_s, window_s=150, clock=self.clock)
        self.syncs = Syncs(clock=self.clock)
        self.shadows = ShadowService(db, self.changes, downlink, clock=self.clock)
        self.commands = CommandService(db, self.changes, downlink, self.metrics, clock=self.clock)
        self.registry = DeviceRegistry(db, self.changes, downlink, clock=self.clock)
        self.telemetry = TelemetryStore(db, settings, clock=self.clock)
        self.keeper = TelemetryKeeper(db, settings, clock=self.clock)
        self.attendance.register(self.ingest)
        self.shadows.register(self.ingest, self.syncs)
        self.commands.register(self.ingest, self.syncs)
        self.telemetry.register(self.ingest)
        self.ingest.on("evt", receive_event)
        self._seqs: dict[str, int] = {}
        self.ep = 1

    # --- devices ---------------------------------------------------------------------------------------------------------

    async def device(self, uid: str = "d1", *, tenant: str = FIRST_TENANT, online: bool = True, **facts: Any) -> str:
        """Enrol a device; by default it is there."""
        await self.db.write(lambda session: add_device(session, tenant, uid, **facts) and None)
        if online:
            await self.online(uid)
        return uid

    async def other_tenant(self) -> None:
        """The tenant of `STRANGER`."""
        row = Tenant(id=STRANGER.tenant, name=STRANGER.tenant, created_at=0.0)
        await self.db.write(lambda session: session.add(row))

    async def online(self, uid: str = "d1") -> None:
        await self.say(topics.live(uid), Live(state="online"))

    async def born(self, uid: str = "d1", **facts: Any) -> None:
        birth = {"version": "1.0.0", "boot": "b", "started": "s", **facts}
        await self.say(topics.birth(uid), Birth.model_validate(birth))

    async def ack(self, uid: str, command: str, state: CommandState, **facts: Any) -> str:
        """A device acknowledges; facts that an envelope has replace those of the envelope."""
        envelope = {name: facts.pop(name) for name in ("ep", "seq", "id") if name in facts}
        return await self.say(topics.ack(uid, command), Ack(state=state, **facts), **envelope)

    async def sync(self, uid: str = "d1", **facts: Any) -> None:
        """A device syncs, and is answered."""
        synced = Synced(FIRST_TENANT, uid, Sync.model_validate(facts), (self.ep, self._next(uid)))
        await self.shadows._answer({uid: synced})
        await self.commands._sender.answer({uid: synced})
        await self.commands._sender.step()

    async def say(
        self,
        topic: str,
        body: BaseModel | Mapping[str, Any],
        *,
        retain: bool = False,
        settle: bool = True,
        **envelope: Any,
    ) -> str:
        """A message of a device arrives and, with `settle`, is stored; returns its id. `envelope` replaces fields of it."""
        uid = topics.parse(topic).uid
        content = body if isinstance(body, Mapping) else body.model_dump(exclude_none=True)
        facts = {"id": new_ulid(), "ep": self.ep, "seq": self._next(uid), "body": dict(content)} | envelope
        message = Envelope.model_validate(facts)
        self.ingest.take(Incoming(topic, encode(message, binary=True), retain))
        if settle:
            await self.settle()
        return message.id

    async def settle(self) -> None:
        """Until nothing waits to be stored."""
        await until(lambda: not self.ingest.waiting_bytes)
        await asyncio.sleep(0)

    async def step(self, seconds: float = 0.0) -> None:
        """Time passes, and what is due is done."""
        self.clock.advance(seconds)
        await self.commands._sender.step()
        await self.attendance.look()

    def _next(self, uid: str) -> int:
        self._seqs[uid] = self._seqs.get(uid, 0) + 1
        return self._seqs[uid]

    def count(self, name: str, **labels: str) -> float:
        """A metric's value; 0 before the first."""
        return self.values.value(f"edgewise_fleet_{name}", labels or None) or 0.0


def empty(database: FleetDatabase) -> None:
    """Remove all rows of a PostgreSQL database, as after its migrations."""
    names = ", ".join(f'"{table.name}"' for table in Base.metadata.sorted_tables)
    with database.engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {names}"))
        connection.execute(insert(Tenant).values(id=FIRST_TENANT, name=FIRST_TENANT, created_at=0.0))
