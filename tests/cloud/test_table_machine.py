"""Any order of calls, with deaths of the process in between, after which the file is opened again. A model of what tenants may
see is held beside the table."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgewise.cloud.jobs.records import Claim
from edgewise.cloud.jobs.table import JobTable
from edgewise.core.clock import FakeClock
from edgewise.core.errors import EngineUnavailable, StaleFence, StreamGone
from edgewise.wire.messages import TERMINAL, Chunk
from edgewise.wire.stream_log import Place, StreamHash
from tests.cloud.tables import DONE, ME, TINY, job_request, open_table, read

KEYS = ("a", "b")
LEASE_S = 15.0


@dataclass
class Known:
    """What a tenant knows of a job: the items that readers can have seen."""

    id: str
    stream: list[int] = field(default_factory=list)
    ended: str | None = None
    kept: bool = True


@dataclass
class Held:
    """A worker's claim, and how much it has written."""

    claim: Claim
    offset: int
    stale: bool = False


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.table = self._open()
        self.jobs: dict[str, Known] = {}
        self.held: list[Held] = []
        self.next_token = 0
        self.dead: list[JobTable] = []

    def _open(self) -> JobTable:
        path = Path(self.folder.name) / "cloud.db"
        return self.loop.run_until_complete(open_table(path, self.clock, lease_s=LEASE_S, max_attempts=3))

    def teardown(self) -> None:
        for table in (*self.dead, self.table):
            self.loop.run_until_complete(table.close())
        self.loop.close()
        self.folder.cleanup()

    @rule(key=strategies.sampled_from(KEYS))
    def submit(self, key: str) -> None:
        job, new = self.loop.run_until_complete(self.table.submit(ME, job_request(key), TINY))
        assert new == (key not in self.jobs)
        known = self.jobs.setdefault(key, Known(job.id))
        assert known.id == job.id

    @rule()
    def claim(self) -> None:
        self._claim()

    def _claim(self) -> None:
        claim = self.loop.run_until_complete(self.table.claim("worker"))
        if claim is None:
            return
        known = self.jobs[claim.job.key]
        assert known.ended is None
        assert [*claim.tokens] == known.stream
        for held in self.held:
            held.stale |= held.claim.job.id == claim.job.id
        self.held.append(Held(claim, claim.job.count))

    @precondition(lambda self: self.held)
    @rule()
    def overtake(self) -> None:
        """Leases run out, another worker has the job, and the first one, which has not noticed, writes."""
        late = self.held[-1]
        for _ in range(2):  # the second time the pause before the next attempt is over too
            self.clock.advance(40.0)
            self.loop.run_until_complete(self.table.tick())
        self._look_for_ends()
        self._claim()
        self._write(late, 1)

    @precondition(lambda self: self.held)
    @rule(data=strategies.data(), count=strategies.integers(1, 4))
    def write(self, data: strategies.DataObject, count: int) -> None:
        self._write(data.draw(strategies.sampled_from(self.held)), count)

    def _write(self, held: Held, count: int) -> None:
        tokens = [*range(self.next_token, self.next_token + count)]
        self.next_token += count
        lease = held.claim.lease

        async def work() -> None:
            for offset, token in enumerate(tokens, held.offset):
                await self.table.append(lease, Chunk(attempt=lease.attempt, offset=offset, count=1, tokens=(token,)))
            await self.table.settle(lease)

        try:
            self.loop.run_until_complete(work())
        except StaleFence:
            self._lost(held)
        else:
            assert not held.stale
            held.offset += count
            self.jobs[held.claim.job.key].stream += tokens

    @precondition(lambda self: self.held)
    @rule(data=strategies.data(), how=strategies.sampled_from(["finish", "fail", "give back"]))
    def end(self, data: strategies.DataObject, how: str) -> None:
        held = data.draw(strategies.sampled_from(self.held))
        lease = held.claim.lease
        try:
            if how == "finish":
                job = self.loop.run_until_complete(self.table.finish(lease, DONE))
            elif how == "fail":
                job = self.loop.run_until_complete(self.table.fail(lease, EngineUnavailable("gone")))
            else:
                job = self.loop.run_until_complete(self.table.give_back(lease))
        except StaleFence:
            self._lost(held)
            return
        assert not held.stale
        self.held.remove(held)
        if job.ended:
            self.jobs[held.claim.job.key].ended = job.state

    def _lost(self, held: Held) -> None:
        """A refusal has to have a reason: a later attempt, a lease that ran out, or a job that ended."""
        row = self.loop.run_until_complete(self.table.get(ME, held.claim.job.id))
        assert held.stale or row.state != "running" or row.attempt != held.claim.lease.attempt
        self.held.remove(held)

    @precondition(lambda self: self.jobs)
    @rule(data=strategies.data())
    def cancel(self, data: strategies.DataObject) -> None:
        known = self.jobs[data.draw(strategies.sampled_from(sorted(self.jobs)))]
        job = self.loop.run_until_complete(self.table.cancel(ME, known.id))
        if job.ended and known.ended is None:
            known.ended = job.state

    @precondition(lambda self: any(known.ended for known in self.jobs.values()))
    @rule(data=strategies.data())
    def acknowledge(self, data: strategies.DataObject) -> None:
        ended = sorted(key for key, known in self.jobs.items() if known.ended)
        known = self.jobs[data.draw(strategies.sampled_from(ended))]
        job = self.loop.run_until_complete(self.table.get(ME, known.id))
        self.loop.run_until_complete(self.table.ack(ME, known.id, job.place, done=True))
        known.kept = False

    @rule(seconds=strategies.sampled_from([1.0, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.run_until_complete(self.table.tick())
        self._look_for_ends()

    @rule()
    def kill(self) -> None:
        """The process is gone, and what it had in memory; nothing was closed."""
        self.dead.append(self.table)
        self.clock.advance(1.0)
        self.table = self._open()
        for held in self.held:
            held.stale = True
        self._look_for_ends()

    def _look_for_ends(self) -> None:
        """Jobs that time or a kill ended: cancelled before, or failed too often."""
        for known in self.jobs.values():
            job = self.loop.run_until_complete(self.table.get(ME, known.id))
            if job.ended and known.ended is None:
                assert job.state in ("cancelled", "failed")
                known.ended = job.state

    @invariant()
    def what_was_seen_stays(self) -> None:
        for known in self.jobs.values():
            job = self.loop.run_until_complete(self.table.get(ME, known.id))
            assert job.count == len(known.stream)
            assert job.state == known.ended if known.ended else job.state not in TERMINAL
            if known.ended and known.kept:
                tokens, final = self.loop.run_until_complete(read(self.table, known.id))
                assert tokens == known.stream
                hashed = StreamHash()
                hashed.tokens(known.stream)
                assert final.sha256 == (hashed.hexdigest() if known.ended == "succeeded" else None)
            elif not known.kept:
                try:
                    self.loop.run_until_complete(read(self.table, known.id, Place(0, 0)))
                except StreamGone:
                    continue
                raise AssertionError("a stream that was dropped was read")

    @invariant()
    def each_is_billed_once(self) -> None:
        ended = sum(known.ended is not None for known in self.jobs.values())
        assert sum(bill.jobs for bill in self.loop.run_until_complete(self.table.bills(0))) == ended


Machine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestTable = Machine.TestCase
