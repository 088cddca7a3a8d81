"""`edgewise cache` where no service runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_tier_that_does_not_exist_is_refused_also_without_a_service(run: Run) -> None:
    done = run("cache", "clear", "--tier", "disc", EDGEWISE_PORT="1")
    assert done.returncode == 2
    assert done.stderr == "edgewise: --tier 'disc' is not one of device, host, disk.\n"


def test_nothing_running_and_nothing_on_disk_is_said(run: Run) -> None:
    done = run("cache", "show", EDGEWISE_PORT="1")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "No service answers, and nothing is on disk.\n"
