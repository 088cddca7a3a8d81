"""The pool's rules in any order: what hypothesis does to it must never break a promise."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgewise.core.errors import EdgewiseError, EngineUnavailable, OutOfMemory
from edgewise.engine.fit import Needs
from edgewise.engine.pool.book import PoolBook
from edgewise.engine.pool.entry import Action, Entry, Fail, Grant, Load, Unload

BUDGET = 100
WAIT_S, RETRY_S = 10.0, 3.0
NAMES = ("a", "b", "c", "d")
names = st.sampled_from(NAMES)


class PoolMachine(RuleBasedStateMachine):
    """Requests come and go, engines start, fail and end; `engines` is what really runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.book = PoolBook(BUDGET, wait_s=WAIT_S, retry_s=RETRY_S)
        self.engines: dict[str, int] = {}  # key -> bytes, from Load to unloaded or failed
        self.ready: set[str] = set()
        self.ending: set[str] = set()
        self.waiters: Counter[str] = Counter()
        self.since: dict[str, float] = {}
        self.streams: Counter[str] = Counter()

    @initialize(sizes=st.lists(st.integers(5, 70), min_size=4, max_size=4), pinned=st.booleans())
    def models(self, sizes: list[int], pinned: bool) -> None:
        for name, size in zip(NAMES, sizes, strict=True):
            needs = Needs(minimal=size, full=size * 2, context=512)
            self.book.add(name, name, needs, pinned=pinned and name == "a", keep_alive_s=20.0)
        self.act(self.book.start_pinned())

    def entry(self, key: str) -> Entry:
        entry = self.book.get(key)
        assert entry is not None
        return entry

    def act(self, actions: list[Action], *, broken: str | None = None) -> None:
        for action in actions:
            key = action.key
            match action:
                case Load(_, budget):
                    assert key not in self.engines, "one engine for each model"
                    assert budget >= self.entry(key).needs.minimal
                    self.engines[key] = budget
                case Unload():
                    assert key in self.engines
                    assert key not in self.ending
                    assert not self.waiters[key], "nobody who waits loses what is being loaded"
                    assert not self.streams[key] or key == broken, "never one that is writing"
                    if action.why == "resized":
                        assert self.entry(key).pinned
                    else:
                        assert not self.entry(key).pinned
                    self.ending.add(key)
                case Grant():
                    assert key in self.ready
                    assert self.waiters[key]
                    self.streams[key] += self.waiters.pop(key)
                case Fail():
                    assert self.waiters.pop(key)
            assert sum(self.engines.values()) <= BUDGET

    # --- requests ----------------------------------------------------------------------------------------------------

    @rule(key=names, keep=st.none() | st.sampled_from([0.0, 5.0, float("inf")]))
    def ask(self, key: str, keep: float | None) -> None:
        self.book.hold(key, keep)
        before = self.waiters[key]
        try:
            actions = self.book.want(key, self.now)
        except OutOfMemory:
            others = sum(e.needs.minimal for e in self.book.entries() if e.pinned and e.key != key)
            assert self.entry(key).needs.minimal + others > BUDGET
            return
        except EngineUnavailable:
            assert self.now < self.entry(key).retry_at
            return
        if not before:
            self.since[key] = self.now
        self.waiters[key] += 1
        self.act(actions)

    @precondition(lambda self: any(self.waiters.values()))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key, count in self.waiters.items() if count)))
        self.waiters[key] -= 1
        self.act(self.book.leave(key))

    @precondition(lambda self: any(self.streams.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key, count in self.streams.items() if count)))
        self.streams[key] -= 1
        self.act(self.book.release(key, self.now))

    @rule(key=names)
    def order_unload(self, key: str) -> None:
        self.act(self.book.unload(key))

    # --- engines -----------------------------------------------------------------------------------------------------

    def _loading(self) -> list[str]:
        return sorted(set(self.engines) - self.ready - self.ending)

    @precondition(lambda self: bool(self._loading()))
    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self._loading()))
        self.ready.add(key)
        self.act(self.book.loaded(key, self.now))

    @precondition(lambda self: any(not self.entry(key).pinned for key in self._loading()))
    @rule(data=st.data())
    def fails_to_load(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key in self._loading() if not self.entry(key).pinned]))
        del self.engines[key]
        self.act(self.book.failed(key, EngineUnavailable("ordered"), self.now))

    @precondition(lambda self: bool(self.ending))
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.ending)))
        self.ending.discard(key)
        self.ready.discard(key)
        del self.engines[key]
        self.act(self.book.unloaded(key))

    @precondition(lambda self: any(not self.entry(key).pinned for key in self.ready - self.ending))
    @rule(data=st.data())
    def breaks(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(k for k in self.ready - self.ending if not self.entry(k).pinned)))
        self.act(self.book.broken(key, EngineUnavailable("ordered"), self.now), broken=key)

    # --- time --------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        """As the pool does it: ticks come when the book asks for them."""
        end = self.now + seconds
        while (at := self.book.next_tick()) is not None and at <= end:
            self.now = max(self.now, at)
            self.act(self.book.tick(self.now))
            later = self.book.next_tick()
            assert later is None or later > at, "a tick does what is due"
        self.now = end

    # --- promises ----------------------------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        assert self.book.granted == sum(self.engines.values()) <= BUDGET
        for entry in self.book.entries():
            assert entry.waiters == self.waiters[entry.key]
            assert entry.streams == self.streams[entry.key]
            assert (entry.granted > 0) == (entry.key in self.engines)

    @invariant()
    def nobody_waits_for_memory_for_ever(self) -> None:
        """One whose engine ended while it was loading waits again; if its time is over by then, a tick is due at once."""
        tick = self.book.next_tick()
        for entry in self.book.entries():
            if entry.state == "waiting" and entry.waiters:
                assert self.now <= entry.asked + WAIT_S or (tick is not None and tick <= self.now)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Who waits for memory does so because models are writing, loading for somebody, or being unloaded."""
        for entry in self.book.entries():
            if entry.state != "waiting":
                continue
            held = [other for other in self.book.entries() if other.granted]
            in_use = any(o.busy or o.state in ("loading", "unloading") or o.pinned for o in held)
            kept = sum(o.kept for o in self.book.entries() if o is not entry and not o.granted)
            assert in_use or kept, f"{entry} waits, and nothing is in its way"

    def teardown(self) -> None:
        """Everything that runs may end, and whoever waits then gets an answer; no engine is left over by closing."""
        for _ in range(50):
            for key in self._loading():
                self.ready.add(key)
                self.act(self.book.loaded(key, self.now))
            for key in [*self.ending]:
                self.ending.discard(key)
                self.ready.discard(key)
                del self.engines[key]
                self.act(self.book.unloaded(key))
            for key in [key for key, count in self.streams.items() if count]:
                self.streams[key] -= 1
                self.act(self.book.release(key, self.now))
        assert not +self.waiters, f"left waiting: {self.waiters} in {self.book!r}"
        self.act(self.book.close(EdgewiseError("end")))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
