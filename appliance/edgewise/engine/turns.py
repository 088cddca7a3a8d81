"""Engine processes of one device take turns: texts go on at their pace, pictures are drawn in between.

Two files that all of them have open: a table in shared memory with a row for each process, and a lock. While a text engine has
work it holds the lock shared (several of them run side by side, as without pictures); a slice of a picture holds it exclusively.

    text engine     between two steps: if pictures wait and `engine.share` allows it, release, wait until one has begun its turn
                    (for a bounded time), take the lock again, which waits until the turn is over
    picture engine  takes the lock, draws slices until what it was allowed is used up, or, where nobody allowed anything because
                    nobody had work, until somebody wants the lock; releases it

The kernel releases the locks of a process that dies, that of its row among them, and a row that nobody has locked counts for
nothing, whatever it says: a dead holder blocks nobody, and numbers of processes, which come again after a reboot and differ
between containers, decide nothing. Several text engines pause together: one that pauses waits for the others to end their
step, and they join it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from edgewise.core.errors import StorageError
from edgewise.engine.share import Share, SliceCost

ROWS = 64
_CELLS = 8  # of eight bytes: process, state, seconds, turns taken, seconds allowed, and three to spare
_PID, _STATE, _SECONDS, _TURNS, _ALLOWED = range(5)
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, process
_TAKE_S = 0.002  # how long a pause waits for a picture engine to wake up
_POLL_S = 0.0001
_WAKE_S = 0.02  # how long a picture engine lets those who waited for it wake up
_FAIR_S = 0.05  # a picture engine's turn while another picture engine waits
_SHORTEST_S = 0.002  # a slice is not cut before that: looking whether somebody waits takes time too


class State(IntEnum):
    """What a process is doing, as its row says."""

    IDLE = 0
    ASKS = 1  # a text engine waits for the lock
    WRITES = 2  # a text engine holds it
    PAUSES = 3  # a text engine lets pictures draw
    WAITS = 4  # a picture engine waits for the lock
    DRAWS = 5  # a picture engine holds it


class Table:
    """One process's view of the table, and its row in it.

    Raises:
        StorageError: The files cannot be made or opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"Engines cannot share the device: {path} cannot be opened ({error.strerror})."
            ) from error
        size = ROWS * _CELLS * 8
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # held for no longer than a row is chosen
            if os.fstat(descriptor).st_size < size:
                os.posix_fallocate(
                    descriptor, 0, size
                )  # writing to a mapped hole on a full disk would kill the process
            self._map = mmap.mmap(descriptor, size)
            self._cells = memoryview(self._map).cast("d")
            self._rows = descriptor
            self._row = self._claim()
        except BaseException as error:
            os.close(descriptor)
            os.close(self._lock)
            if isinstance(error, OSError):
                raise StorageError(
                    f"Engines cannot share the device: {path} cannot be made ({error.strerror})."
                ) from error
            raise
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def __repr__(self) -> str:
        return f"Table(row={self._row}, {self.state.name})"

    def _claim(self) -> int:
        for row in range(ROWS):
            if not self._alive(row):
                fcntl.fcntl(self._rows, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, row, 1, 0))
                start = row * _CELLS
                for cell in range(_CELLS):
                    self._cells[start + cell] = 0.0
                self._cells[start + _PID] = float(os.getpid())
                return row
        raise StorageError(f"More than {ROWS} engine processes share one device.")

    def _alive(self, row: int) -> bool:
        """Whether a process other than this one has the row."""
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, row, 1, 0)
        held: int = struct.unpack(_FLOCK, fcntl.fcntl(self._rows, fcntl.F_OFD_GETLK, asked))[0]
        return held != fcntl.F_UNLCK

    # --- the own row ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return State(int(self._cells[self._row * _CELLS + _STATE]))

    @state.setter
    def state(self, state: State) -> None:
        self._cells[self._row * _CELLS + _STATE] = float(state)

    def publish(self, *, seconds: float | None = None, allowed: float | None = None, turn: bool = False) -> None:
        start = self._row * _CELLS
        if seconds is not None:
            self._cells[start + _SECONDS] = seconds
        if allowed is not None:
            self._cells[start + _ALLOWED] = allowed
        if turn:
            self._cells[start + _TURNS] += 1.0

    # --- the others' ---------------------------------------------------------------------------------------------------

    def others(self, *states: State) -> list[int]:
        """Rows of other living processes in one of these states."""
        held = self._cells[_STATE::_CELLS].tolist()
        if not any(held.count(int(state)) for state in states):  # nearly always, and asked after every step
            return []
        found = []
        for row in range(ROWS):
            start = row * _CELLS
            if row != self._row and self._cells[start + _STATE] in states and self._alive(row):
                found.append(row)
        return found

    def longest(self, rows: list[int]) -> float:
        """Of the seconds that these rows say a step or slice takes."""
        return max((self._cells[row * _CELLS + _SECONDS] for row in rows), default=0.0)

    def allowed(self) -> float | None:
        """Seconds that the text engines which pause allow; None where none does."""
        pausing = self.others(State.PAUSES)
        return min((self._cells[row * _CELLS + _ALLOWED] for row in pausing), default=None)

    def turns(self) -> float:
        """Turns that pictures have had, of all processes."""
        return sum(self._cells[row * _CELLS + _TURNS] for row in range(ROWS))

    # --- the lock ------------------------------------------------------------------------------------------------------

    def take(self, *, shared: bool) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the row and the lock back."""
        self.state = State.IDLE
        self._cells[self._row * _CELLS + _PID] = 0.0
        self._cells.release()
        self._map.close()
        os.close(self._rows)
        os.close(self._lock)


class TextTurns:
    """A text engine's side: `step` around each of its steps, `between` after what it made was handed over, `idle` when it has no
    work. `before_pause` hands over what else there is."""

    def __init__(
        self,
        table: Table,
        now: Callable[[], float] = time.monotonic,
        *,
        before_pause: Callable[[], object] = lambda: None,
    ) -> None:
        self._table = table
        self._now = now
        self._before_pause = before_pause
        self._share = Share()
        self._held = False

    @contextmanager
    def step(self) -> Iterator[None]:
        if not self._held:
            self._take()
        began = self._now()
        yield
        self._share.stepped(self._now() - began)
        self._table.publish(seconds=self._share.step_s)

    def between(self) -> None:
        """Pause for pictures that wait, if it is time or another text engine does."""
        waiting = self._table.others(State.WAITS)
        if not waiting:
            return
        allowed = self._share.pause(self._table.longest(waiting))
        joined = self._table.allowed()
        if allowed == 0.0 and joined is not None:
            allowed, self._share.clear = joined, 0
        if allowed > 0.0:
            self._pause(allowed)

    def idle(self) -> None:
        if self._held:
            self._table.state = State.IDLE
            self._table.release()
            self._held = False

    def _take(self) -> None:
        self._table.state = State.ASKS
        self._table.take(shared=True)  # waits until the turn that has begun is over
        self._table.state = State.WRITES
        self._held = True

    def _pause(self, allowed: float) -> None:
        self._before_pause()
        table, before = self._table, self._table.turns()
        table.publish(allowed=allowed)
        table.state = State.PAUSES
        table.release()
        deadline = self._now() + _TAKE_S + table.longest(table.others(State.WRITES))
        while table.turns() == before and self._now() < deadline:
            time.sleep(_POLL_S)
        self._take()


class PictureTurns:
    """A picture engine's side; implements `engine.pictures.engine.Slices`."""

    def __init__(self, table: Table, now: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._now = now
        self._cost = SliceCost()
        self._held = False
        self._yielding = False
        self._since = 0.0
        self._began: float | None = None
        self._allowed: float | None = None

    @contextmanager
    def slice(self) -> Iterator[None]:
        """Waits for this process's turn, and goes on with it while it lasts."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    def cut(self) -> None:
        """End the slice under way and begin the next one; nothing where none is, or it has only just begun."""
        if self._began is not None and self._now() - self._began >= _SHORTEST_S:
            self._end()
            self._begin()

    def _begin(self) -> None:
        if not self._held:
            self._take()
        self._began = self._now()

    def _end(self) -> None:
        began, self._began = self._began, None
        if began is None:
            return  # taking the turn failed
        ended = self._now()
        self._cost.observe(ended - began)
        self._table.publish(seconds=self._cost.seconds)
        if self._over(ended - self._since):
            self.idle()

    def idle(self) -> None:
        """The turn is over."""
        if self._held:
            self._table.state = State.IDLE
            self._table.release()
            self._held = False

    def _take(self) -> None:
        table = self._table
        table.state = State.WAITS
        self._make_way()
        table.take(shared=False)
        table.state = State.DRAWS
        self._held, self._since, self._allowed = True, self._now(), table.allowed()
        table.publish(turn=True)  # last: who pauses goes on when it sees this

    def _make_way(self) -> None:
        """Who waited while this process drew comes first: the lock itself goes to whoever is awake."""
        table, before = self._table, self._table.turns()
        deadline = self._now() + _WAKE_S
        while self._now() < deadline and (
            table.others(State.ASKS) or (self._yielding and table.others(State.WAITS) and table.turns() == before)
        ):
            time.sleep(_POLL_S)
        self._yielding = False

    def _over(self, used: float) -> bool:
        """Whether to release the lock before the next slice."""
        if self._allowed is not None:
            return used + self._cost.seconds > self._allowed
        if self._table.others(State.ASKS, State.PAUSES):
            return True
        self._yielding = used >= _FAIR_S and bool(self._table.others(State.WAITS))
        return self._yielding
