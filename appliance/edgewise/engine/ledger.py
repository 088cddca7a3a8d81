"""The memory ledger: every large allocation is booked here before it is made. Refusing with a reason beats dying.

On a machine with unified memory, and on any CPU box, the truth is the kernel's MemAvailable (what can be had without
swapping, page cache included), bounded by the control group's limit, not a device counter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgewise.core.errors import OutOfMemory
from edgewise.core.sizes import mib
from edgewise.engine.api import MemoryReport

SHRINK_MARK = 0.80  # share of the budget up to which the KV cache is made
REFUSE_MARK = 0.90  # share of the budget above which nothing is booked


class Ledger:
    """Bytes booked by purpose against a budget.

    Args:
        budget: Bytes that may be booked in all.
        available: Returns the bytes that the system could hand out now, for reports.
    """

    def __init__(self, budget: int, available: Callable[[], int]) -> None:
        self.budget = budget
        self._available = available
        self._booked: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"Ledger({self.total} of {self.budget} bytes booked: {self._booked})"

    @property
    def total(self) -> int:
        return sum(self._booked.values())

    def room(self, mark: float = REFUSE_MARK) -> int:
        """Bytes that can still be booked below `mark` x budget; never negative."""
        return max(0, int(self.budget * mark) - self.total)

    def book(self, purpose: str, size: int) -> None:
        """Book `size` more bytes for `purpose`.

        Raises:
            OutOfMemory: It would pass the 90 % mark; the message names what is asked for, what is booked and the remedy.
        """
        if size > self.room():
            raise OutOfMemory(
                f"{purpose} needs {mib(size)}, but {mib(self.total)} of the budget of {mib(self.budget)} are booked and new "
                f"work stops at {REFUSE_MARK:.0%}. Free memory, raise engine.memory_fraction, or use a smaller model or context."
            )
        self._booked[purpose] = self._booked.get(purpose, 0) + size

    def give_back(self, purpose: str, size: int) -> None:
        """Book `size` bytes less for a purpose; at none left it is no longer named."""
        left = self._booked.get(purpose, 0) - size
        if left > 0:
            self._booked[purpose] = left
        else:
            self.free(purpose)

    def free(self, purpose: str) -> None:
        self._booked.pop(purpose, None)

    def report(self) -> MemoryReport:
        return MemoryReport(budget_bytes=self.budget, available_bytes=self._available(), booked=dict(self._booked))


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes that can be allocated now: MemAvailable, or less where a control group (v2) limits this process.

    Raises:
        OutOfMemory: The system does not tell (no MemAvailable), so no budget can be made.
    """
    available = _mem_available(meminfo)
    for folder in _own_groups(cgroup, own):
        left = _group_room(folder)
        if left is not None:
            available = min(available, left)
    return available


def _mem_available(meminfo: Path) -> int:
    for line in meminfo.read_text(encoding="ascii", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OutOfMemory(f"{meminfo} has no MemAvailable line: set engine.kv_memory_bytes and use a Linux kernel >= 3.14.")


def _own_groups(root: Path, own: Path) -> list[Path]:
    """This process's control group and its ancestors; each may set a limit."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None:
        return []
    folder = root / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]


def _group_room(folder: Path) -> int | None:
    """Limit minus what is used and cannot be reclaimed (page cache can); None without a limit."""
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    cache = sum(
        int(line.split()[1]) for line in stat.splitlines() if line.startswith(("inactive_file ", "active_file "))
    )
    return max(0, int(limit) - used + cache)
