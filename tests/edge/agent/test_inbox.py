"""The inbox's table as a state machine: whatever happens in whatever order, a command has one end, and its row says the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from edgewise.core.clock import FakeClock
from edgewise.core.sqlite import Database
from edgewise.edge.agent.commands.inbox import Inbox
from edgewise.edge.agent.commands.record import Order
from edgewise.edge.agent.moments import Moments
from edgewise.edge.agent.schema import open_agent
from edgewise.edge.agent.uplink.rows import Rows
from edgewise.wire.envelope import new_ulid
from edgewise.wire.fleet import ENDED, Ack

DAY_S = 86_400.0
STATES = ("succeeded", "failed", "cancelled", "timed-out")


class Life(RuleBasedStateMachine):
    """A model beside the table: the state of each id, and which ends the fleet has."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.model: dict[str, str] = {}
        self.received: set[str] = set()
        self.database: Database
        self.open()

    def open(self) -> None:
        moments = Moments(self.clock, "boot")
        self.database = open_agent(Path(self.folder.name) / "agent.db")
        self.rows = Rows(self.database, moments, max_bytes=10**6)
        self.inbox = Inbox(self.database, self.rows, moments, "dev-1")

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.database.close()
        self.loop.close()
        self.folder.cleanup()

    @rule(target=ids, lane=st.sampled_from(("control", "update", "infer")), refused=st.booleans())
    def take(self, lane: Any, refused: bool) -> str:
        id = new_ulid()
        order = Order(id=id, op="op", lane=lane, args={"a": 1}, reply=None, total_s=60.0, step_s=60.0)
        taken = self.do(self.inbox.take(order, Ack(state="rejected", code="no") if refused else None))
        assert (taken.fresh, taken.record.ended) == (True, refused)
        self.model[id] = "rejected" if refused else "accepted"
        return id

    @rule(id=ids, other=st.booleans())
    def take_again(self, id: str, other: bool) -> None:
        args = {"a": 2} if other else {"a": 1}
        order = Order(id=id, op="op", lane="control", args=args, reply=None, total_s=60.0, step_s=60.0)
        taken = self.do(self.inbox.take(order))
        if id in self.model:
            assert (taken.fresh, taken.record.state) == (False, self.model[id])
            assert taken.told == (self.model[id] in ENDED and id not in self.received)
        else:
            self.model[id] = "accepted"  # it was forgotten long after its end

    @rule(id=ids)
    def begin(self, id: str) -> None:
        could = self.model.get(id) in ("accepted", "running")
        assert self.do(self.inbox.begin(id)) is could
        if could:
            self.model[id] = "running"

    @rule(id=ids, state=st.sampled_from(STATES))
    def end(self, id: str, state: Any) -> None:
        could = id in self.model and self.model[id] not in ENDED
        assert self.do(self.inbox.end(id, Ack(state=state))) is could
        if could:
            self.model[id] = state

    @rule(id=ids)
    def receive(self, id: str) -> None:
        rows = [row for row in self.do(self.rows.next("result", 0, 1000)) if row.re == id]
        self.do(self.rows.received([row.id for row in rows]))
        if rows:
            self.received.add(id)

    @rule()
    def start_again(self) -> None:
        self.database.close()
        self.open()

    @rule(id=consumes(ids))
    def forget(self, id: str) -> None:
        """A week later: only what has ended and was received may go."""
        self.clock.advance(8 * DAY_S)
        self.do(self.inbox.prune(7 * DAY_S, 10**6))
        for one in [*self.model]:
            if self.model[one] in ENDED and one in self.received:
                assert self.do(self.inbox.find(one)) is None
                del self.model[one]
                self.received.discard(one)

    @invariant()
    def the_table_says_the_same(self) -> None:
        for id, state in self.model.items():
            record = self.do(self.inbox.find(id))
            assert record is not None
            assert record.state == state
            assert (record.outcome is not None) == (state in ENDED)
            assert record.args == ({} if state in ENDED else record.args)
        waiting = {row.re: row.body["state"] for row in self.do(self.rows.next("result", 0, 1000))}
        assert waiting == {id: s for id, s in self.model.items() if s in ENDED and id not in self.received}
        assert set(self.do(self.inbox.open())) == {id for id, s in self.model.items() if s not in ENDED}


Life.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestLife = Life.TestCase


async def test_beyond_their_bound_the_oldest_results_go_and_their_ends_stay() -> None:
    database, clock = open_agent(None), FakeClock()
    moments = Moments(clock, "boot")
    rows = Rows(database, moments, max_bytes=10**6)
    inbox = Inbox(database, rows, moments, "dev-1")
    ids = [new_ulid() for _ in range(4)]
    for id in ids:
        await inbox.take(Order(id=id, op="op", lane="infer", args={}, reply=None, total_s=1.0, step_s=1.0))
        await inbox.end(id, Ack(state="succeeded", result={"text": "x" * 1000}))
    waiting = await rows.next("result", 0, 10)
    await rows.received([row.id for row in waiting if row.re != ids[0]])
    await inbox.prune(DAY_S, 2500)
    results = {}
    for id in ids:
        record = await inbox.find(id)
        assert record is not None
        assert record.state == "succeeded"
        results[id] = record.ack().result is not None
    assert results == {ids[0]: True, ids[1]: False, ids[2]: True, ids[3]: True}  # the first was not received yet
    database.close()
