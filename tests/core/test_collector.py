from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from edgewise.core.collector import lasting

if {before}:
    gc.disable()
try:
    with lasting():
        assert not gc.isenabled()
        kept = [[] for _ in range(5000)]
        {then}
except KeyError:
    pass
print(gc.isenabled(), gc.get_freeze_count() > 5000)
"""


def ended(*, off_before: bool = False, then: str = "") -> str:
    """What a process of its own says afterwards: whether the collector runs, and whether it keeps out of what was made."""
    code = PROGRAM.format(before=off_before, then=then)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_what_was_made_is_kept_out_of_collections() -> None:
    assert ended() == "True True"


def test_a_collector_that_was_off_stays_off() -> None:
    assert ended(off_before=True) == "False True"


def test_an_import_that_fails_leaves_the_collector_running() -> None:
    assert ended(then="raise KeyError") == "True False"
