"""The pool's rules as a pure state machine: events in, actions out, no I/O and no clock of its own.

    cold -> waiting -> loading -> ready -> unloading -> cold

Models wait in the order of their modality (voice, chat, image, video), those of one in the order of asking. One is given room
that is free; else idle models are unloaded, those of the last modality first and the least recently used of these, never one that
is writing or has requests queued. An idle pinned model that holds more than it needs is started again with less. What does not
fit after that waits until a writing model ends, for a bounded time. One that makes itself quicker stays loaded beyond its time,
but gives way like the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgewise.core.errors import EdgewiseError, EngineUnavailable, ModelNotFound, OutOfMemory
from edgewise.core.modality import Modality
from edgewise.core.sizes import mib
from edgewise.engine.fit import Needs
from edgewise.engine.pool.entry import FOREVER, Action, Entry, Fail, Grant, Load, Unload, Why, again

_IMPROVES_S = 30.0
"""After so long a model that is kept because it makes itself quicker is looked at again."""


class PoolBook:
    """See the module's docstring.

    Args:
        budget: Bytes that all engines together may book.
        wait_s: How long a request waits for memory.
        retry_s: Pause after a failed load, in which the failure is answered without another try.

    Attributes:
        sharing: Whether more than one model may be asked. If not, the only one is given the whole budget.
    """

    def __init__(self, budget: int, *, wait_s: float, retry_s: float) -> None:
        self.budget = budget
        self.sharing = True
        self._wait_s = wait_s
        self._retry_s = retry_s
        self._entries: dict[str, Entry] = {}
        self._queue: list[Entry] = []  # those in state "waiting", the first one first
        self._closed = False

    def __repr__(self) -> str:
        states = ", ".join(f"{entry.key}={entry.state}" for entry in self._entries.values())
        return f"PoolBook({self.granted} of {self.budget} bytes granted: {states})"

    @property
    def granted(self) -> int:
        return sum(entry.granted for entry in self._entries.values())

    def entries(self) -> Iterable[Entry]:
        return self._entries.values()

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    # --- what may be asked -------------------------------------------------------------------------------------------

    def add(
        self,
        key: str,
        name: str,
        needs: Needs,
        *,
        pinned: bool,
        keep_alive_s: float,
        modality: Modality = Modality.CHAT,
    ) -> None:
        """Make a model known; nothing is loaded yet.

        Raises:
            OutOfMemory: A pinned model that cannot be held beside the other pinned ones.
        """
        entry = Entry(
            key=key,
            name=name,
            needs=needs,
            modality=modality,
            pinned=pinned,
            keep_alive_s=keep_alive_s,
            held_s=keep_alive_s,
        )
        if pinned:
            self._check_possible(entry)
        self._entries[key] = entry

    def retire(self, key: str) -> list[Action]:
        """It is not to be asked any more (removed, replaced): unload it as soon as nobody uses it."""
        entry = self._entries.get(key)
        if entry is None:
            return []
        entry.retired = True
        if not entry.busy and entry.state in ("loading", "ready"):
            return [self._unload(entry, "removed")]
        self._settle(entry)
        return self._plan()

    def start_pinned(self) -> list[Action]:
        """Load every pinned model that is not loaded."""
        for entry in self._entries.values():
            if entry.pinned and entry.state == "cold" and not entry.retired:
                self._enqueue(entry)
        return self._plan()

    # --- requests ----------------------------------------------------------------------------------------------------

    def hold(self, key: str, keep_alive_s: float | None) -> None:
        """A request has come that wants the model kept for so long after its answer; None takes the model's setting."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.held_s = entry.keep_alive_s if keep_alive_s is None else keep_alive_s

    def want(self, key: str, now: float) -> list[Action]:
        """A request needs the model: it waits for a `Grant` or a `Fail`, which may be among the actions returned.

        Raises:
            OutOfMemory: It can never fit.
            EdgewiseError: Why the last load failed, during the pause after it.
            ModelNotFound: It has been removed or replaced.
        """
        entry = self._entries.get(key)
        if entry is None or entry.retired:
            raise ModelNotFound("The model was removed or replaced while it was being asked: ask again.", param="model")
        if entry.failure is not None and now < entry.retry_at:
            raise again(entry.failure, retry_after_s=max(1.0, entry.retry_at - now))
        self._check_possible(entry)
        entry.used = now
        entry.expires = None
        if not entry.waiters:
            entry.asked = now
        entry.waiters += 1
        if entry.state == "ready":
            return [self._grant(entry)]
        if entry.state == "cold":
            self._enqueue(entry)
        return self._plan()

    def leave(self, key: str) -> list[Action]:
        """A waiting request has been given up. A load that has begun goes on: it is evicted first if others need its room."""
        entry = self._entries[key]
        entry.waiters -= 1
        self._settle(entry)
        return self._plan()

    def release(self, key: str, now: float) -> list[Action]:
        """A stream has ended, however it ended."""
        entry = self._entries[key]
        entry.streams -= 1
        entry.used = now
        return [*self._rest(entry, now), *self._plan()]

    def unload(self, key: str) -> list[Action]:
        """By order: as soon as it is idle. Not for pinned models."""
        entry = self._entries.get(key)
        if entry is None or entry.pinned:
            return []
        entry.held_s = 0.0
        if not entry.busy and entry.state in ("loading", "ready"):
            return [self._unload(entry, "asked")]
        return []

    # --- engines -----------------------------------------------------------------------------------------------------

    def loaded(self, key: str, now: float) -> list[Action]:
        """The engine can be asked. Ignored if it is to be unloaded meanwhile."""
        entry = self._entries[key]
        if entry.state != "loading":
            return []
        entry.state, entry.failure = "ready", None
        if entry.waiters:
            return [self._grant(entry), *self._plan()]
        entry.used = now
        return [*self._rest(entry, now), *self._plan()]

    def failed(self, key: str, error: EdgewiseError, now: float) -> list[Action]:
        """The load has failed and its process is gone. Ignored if it is to be unloaded meanwhile."""
        entry = self._entries[key]
        if entry.state != "loading":
            return []
        entry.granted, entry.state = 0, "cold"
        entry.failure, entry.retry_at = error, now + self._retry_s
        actions = self._fail(entry, error)
        self._settle(entry)
        return [*actions, *self._plan()]

    def broken(self, key: str, error: EdgewiseError, now: float) -> list[Action]:
        """The engine was ready and keeps failing: its requests have got the error, the model is unloaded."""
        entry = self._entries[key]
        if entry.state != "ready":
            return []
        entry.failure, entry.retry_at = error, now + self._retry_s
        return [self._unload(entry, "failed")]

    def unloaded(self, key: str) -> list[Action]:
        """The engine's process is gone and its memory free."""
        entry = self._entries[key]
        entry.granted, entry.state = 0, "cold"
        if entry.wanted and not self._closed:
            self._enqueue(entry)
        self._settle(entry)
        return self._plan()

    def improving(self, key: str, *, begun: bool) -> None:
        """The engine has begun, or ended, to make itself quicker beside requests, or its process is gone."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.improving = begun

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """Unload what has been kept long enough, and end waits that have been long enough."""
        actions: list[Action] = []
        for entry in list(self._entries.values()):
            if entry.state == "ready" and entry.expires is not None and now >= entry.expires:
                if entry.improving:
                    entry.expires = now + _IMPROVES_S
                else:
                    actions.append(self._unload(entry, "keep_alive"))
            elif entry.state == "waiting" and entry.waiters and now >= entry.asked + self._wait_s:
                actions += self._fail(entry, self._no_room(entry))
                self._settle(entry)
        return [*actions, *self._plan()] if actions else []

    def next_tick(self) -> float | None:
        """When `tick` has something to do; None while nothing is under way."""
        times = [
            entry.expires for entry in self._entries.values() if entry.state == "ready" and entry.expires is not None
        ]
        times += [entry.asked + self._wait_s for entry in self._queue if entry.waiters]
        return min((time for time in times if time < FOREVER), default=None)

    def close(self, error: EdgewiseError) -> list[Action]:
        """Fail everyone who waits and load nothing any more."""
        self._closed = True
        self._queue.clear()
        return [action for entry in self._entries.values() for action in self._fail(entry, error)]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _enqueue(self, entry: Entry) -> None:
        entry.state = "waiting"
        self._queue.append(entry)

    def _settle(self, entry: Entry) -> None:
        """Out of the queue if nobody waits for it any more; forgotten if it is retired and gone."""
        if entry.state == "waiting" and not entry.wanted:
            self._queue.remove(entry)
            entry.state = "cold"
        if entry.state == "cold" and entry.retired and not entry.busy:
            self._entries.pop(entry.key, None)

    def _grant(self, entry: Entry) -> Grant:
        entry.streams += entry.waiters
        entry.waiters = 0
        return Grant(entry.key)

    def _fail(self, entry: Entry, error: EdgewiseError) -> list[Action]:
        if not entry.waiters:
            return []
        entry.waiters = 0
        return [Fail(entry.key, error)]

    def _rest(self, entry: Entry, now: float) -> list[Action]:
        """It may have become idle: from now on its keep-alive runs."""
        if entry.state == "cold":
            self._settle(entry)
        if entry.state != "ready" or entry.busy:
            return []
        if entry.retired:
            return [self._unload(entry, "removed")]
        if entry.pinned:
            return []
        if entry.held_s <= 0:
            return [self._unload(entry, "keep_alive")]
        entry.expires = now + entry.held_s
        return []

    def _unload(self, entry: Entry, why: Why) -> Unload:
        entry.state, entry.expires = "unloading", None
        return Unload(entry.key, why)

    def _plan(self) -> list[Action]:
        """Give room to those who wait, in their order."""
        actions: list[Action] = []
        for entry in sorted(self._queue, key=lambda one: one.modality):
            room = self._free(entry)
            if entry.needs.minimal <= room:
                self._queue.remove(entry)
                entry.state, entry.granted = "loading", self._share(entry, room)
                actions.append(Load(entry.key, entry.granted))
                continue
            missing = entry.needs.minimal - room - self._coming()
            if missing > 0:
                victims = self._victims(missing)
                if not victims:
                    continue  # it waits for a model that is writing; a smaller one behind it may fit
                actions += [self._unload(victim, "resized" if victim.kept else "evicted") for victim in victims]
            break  # what is being unloaded is meant for this one
        return actions

    def _free(self, entry: Entry) -> int:
        """Bytes that this model could be given now; pinned models that are to be loaded keep what they need."""
        kept = sum(other.kept for other in self._entries.values() if other is not entry and not other.granted)
        return self.budget - self.granted - kept

    def _coming(self) -> int:
        return sum(entry.granted - entry.kept for entry in self._entries.values() if entry.state == "unloading")

    def _share(self, entry: Entry, room: int) -> int:
        """What it needs, and half of what it could use beyond that, but so that the largest other model that can be held
        beside it, of those that have been asked, finds room; alone all there is."""
        if not self.sharing:
            return room
        least, most = entry.needs.minimal, max(entry.needs.minimal, min(entry.needs.full, room))
        others = [
            other.needs.minimal
            for other in self._entries.values()
            if other is not entry and not other.granted and not other.kept and not other.retired
        ]
        beside = max((size for size in others if least + size <= room), default=0)
        return min(least + (most - least) // 2, room - beside)

    def _victims(self, missing: int) -> list[Entry]:
        """Idle models whose memory makes up for what is missing, or none if it does not."""
        idle = [
            entry for entry in self._entries.values()
            if not entry.busy and entry.state in ("loading", "ready") and entry.granted > entry.kept
        ]  # fmt: skip
        idle = [entry for entry in idle if not entry.pinned or entry.state == "ready"]
        idle.sort(key=lambda entry: (entry.pinned, -entry.modality, entry.used))
        victims: list[Entry] = []
        for entry in idle:
            if missing <= 0:
                break
            victims.append(entry)
            missing -= entry.granted - entry.kept
        return victims if missing <= 0 else []

    def _check_possible(self, entry: Entry) -> None:
        pinned = [other for other in self._entries.values() if other.kept and other is not entry]
        room = self.budget - sum(other.kept for other in pinned)
        if entry.needs.minimal > room:
            beside = f" beside the pinned {_names(pinned)}" if pinned else ""
            raise OutOfMemory(
                f"The model '{entry.name}' needs {mib(entry.needs.minimal)} of memory, and {mib(max(0, room))} of the "
                f"budget of {mib(self.budget)} can be had for it{beside}. Free memory, raise engine.memory_fraction or "
                "engine.memory_budget_bytes, lower engine.max_context, or take a smaller model.",
                param="model",
            )

    def _no_room(self, entry: Entry) -> EngineUnavailable:
        busy = [other for other in self._entries.values() if other is not entry and other.granted and other.busy]
        who = f"{_names(busy)} {'is' if len(busy) == 1 else 'are'} answering" if busy else "others were loaded first"
        return EngineUnavailable(
            f"The model '{entry.name}' needs {mib(entry.needs.minimal)} of memory and found none within "
            f"{self._wait_s:g} s, because {who}; the budget of all models is {mib(self.budget)}. Try again, or raise "
            "engine.memory_budget_bytes.",
            param="model",
            retry_after_s=max(1.0, self._wait_s / 4),
        )


def _names(entries: Iterable[Entry]) -> str:
    return ", ".join(f"'{entry.name}'" for entry in entries)
