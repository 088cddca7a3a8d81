"""The memory ledger, and what it takes for the truth about available memory."""

from pathlib import Path

import pytest

from edgewise.core.errors import OutOfMemory
from edgewise.core.sizes import mib
from edgewise.engine.ledger import Ledger, available_memory

GIB = 2**30


def test_bookings_add_up_and_stop_at_the_mark() -> None:
    ledger = Ledger(10 * GIB, lambda: 20 * GIB)
    ledger.book("weights", 6 * GIB)
    ledger.book("kv_cache", 3 * GIB)
    assert ledger.total == 9 * GIB
    assert ledger.room() == 0
    with pytest.raises(OutOfMemory, match=r"encoder needs 1\.0 MiB.*9,216\.0 MiB.*10,240\.0 MiB"):
        ledger.book("encoder", 2**20)
    ledger.free("kv_cache")
    ledger.book("encoder", GIB)
    report = ledger.report()
    assert dict(report.booked) == {"weights": 6 * GIB, "encoder": GIB}
    assert (report.budget_bytes, report.available_bytes) == (10 * GIB, 20 * GIB)


def test_a_refused_booking_changes_nothing() -> None:
    ledger = Ledger(100, lambda: 100)
    ledger.book("a", 50)
    with pytest.raises(OutOfMemory):
        ledger.book("a", 60)
    assert ledger.total == 50


def fake_system(tmp_path: Path, *, available_kib: int, limit: str = "max", current: int = 0, cache: int = 0) -> int:
    meminfo = tmp_path / "meminfo"
    # page cache full, hardly anything "free": what a Jetson looks like after a model was copied (unified memory)
    meminfo.write_text(
        f"MemTotal: 8000000 kB\nMemFree: 1000 kB\nMemAvailable: {available_kib} kB\nCached: 7000000 kB\n"
    )
    group = tmp_path / "cgroup" / "system.slice" / "edgewise.service"
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(limit + "\n")
    (group / "memory.current").write_text(str(current))
    (group / "memory.stat").write_text(f"anon 5\nactive_file {cache}\ninactive_file 0\nslab 3\n")
    own = tmp_path / "self"
    own.write_text("0::/system.slice/edgewise.service\n")
    return available_memory(meminfo, tmp_path / "cgroup", own)


def test_available_is_what_the_kernel_says_not_what_is_free(tmp_path: Path) -> None:
    assert fake_system(tmp_path, available_kib=6_000_000) == 6_000_000 * 1024


def test_the_control_group_limit_bounds_it(tmp_path: Path) -> None:
    got = fake_system(tmp_path, available_kib=6_000_000, limit=str(GIB), current=GIB // 2, cache=GIB // 4)
    assert got == GIB - GIB // 2 + GIB // 4


def test_a_limit_of_an_outer_group_counts(tmp_path: Path) -> None:
    fake_system(tmp_path, available_kib=6_000_000)
    outer = tmp_path / "cgroup" / "system.slice"
    (outer / "memory.max").write_text("1000000")
    (outer / "memory.current").write_text("400000")
    (outer / "memory.stat").write_text("active_file 0\n")
    assert available_memory(tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "self") == 600_000


def test_a_system_that_does_not_tell_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(OutOfMemory, match="MemAvailable"):
        available_memory(tmp_path / "meminfo", tmp_path, tmp_path / "none")


def test_this_machine_has_memory() -> None:
    assert available_memory() > 2**20


def test_sizes_read_well() -> None:
    assert mib(1536 * 2**20) == "1,536.0 MiB"


def test_a_part_of_what_is_booked_is_given_back() -> None:
    ledger = Ledger(100, lambda: 100)
    ledger.book("encoder", 50)
    ledger.give_back("encoder", 20)
    assert (ledger.total, ledger.room()) == (30, 60)
    ledger.give_back("encoder", 30)
    assert ledger.report().booked == {}
