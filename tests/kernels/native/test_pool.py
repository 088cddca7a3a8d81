from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from edgewise.kernels.native import library
from edgewise.kernels.native.formats import WeightFormat
from edgewise.kernels.native.packed import pack
from edgewise.kernels.quantized_linear import quantized_linear
from tests.kernels.native.programs import compiled
from tests.kernels.native.using import using


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


def stress(program: Path, threads: int, runs: int, barriers: int) -> None:
    command = [str(program), str(threads), str(runs), str(barriers)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_runs_and_barriers_on_more_threads_than_cores(folder: Path) -> None:
    program = compiled(folder, "pool_stress", sources=("pool.cpp",))
    for threads in range(1, 9):
        stress(program, threads, 200, threads % 4)


def test_what_threads_write_is_seen_without_races(folder: Path) -> None:
    """ThreadSanitizer fails the run at the first access that the pool does not order."""
    program = compiled(folder, "pool_stress", "-fsanitize=thread", "-g", sources=("pool.cpp",))
    for threads in (2, 4):
        stress(program, threads, 100, 3)


FORKED = """
import os, sys, torch
from edgewise.kernels.native import library
from edgewise.kernels.native.formats import WeightFormat
from edgewise.kernels.native.packed import pack
from edgewise.kernels.quantized_linear import quantized_linear

x, weight = torch.ones(3, 64), pack(torch.ones(64, 64), WeightFormat.INT8)
library.set_threads(4)
before = quantized_linear(x, weight)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(quantized_linear(x, weight), before) and library.threads() == 4 else 1)
assert torch.equal(quantized_linear(x, weight), before)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_computes_on_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=120)


LIMITED = """
import resource, sys
from pathlib import Path
from edgewise.kernels.native import library

library.set_threads(2)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))
library.set_threads(library.MAX_THREADS)
few = library.threads()
assert 1 <= few < library.MAX_THREADS, few
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
library.set_threads(library.MAX_THREADS)
assert library.threads() == library.MAX_THREADS
"""


def test_threads_that_the_system_refuses_are_done_without() -> None:
    """Address space for a few stacks stands for systemd's TasksMax: either way the system says that it has no more threads."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", LIMITED], check=True, timeout=120)


def test_callers_take_turns() -> None:
    """Loading rounds weights on the pool too; from several threads of Python nothing is lost or mixed up."""
    weight = torch.randn((64, 256), generator=torch.Generator().manual_seed(0))
    x = torch.ones(3, 256)
    packed = pack(weight, WeightFormat.INT8)
    product = quantized_linear(x, packed)

    def both(_: int) -> bool:
        again = pack(weight, WeightFormat.INT8)
        return torch.equal(again.data, packed.data) and torch.equal(quantized_linear(x, again), product)

    with using(library.isa(), 3), ThreadPoolExecutor(4) as callers:
        assert all(callers.map(both, range(100)))


def test_the_pool_changes_its_size_between_calls() -> None:
    """One that a caller still waited for must not be gone when its turn comes."""
    packed = pack(torch.randn((64, 256), generator=torch.Generator().manual_seed(0)), WeightFormat.INT8)
    x = torch.ones(3, 256)
    product = quantized_linear(x, packed)

    def same(_: int) -> bool:
        return torch.equal(quantized_linear(x, packed), product)

    with using(library.isa(), 3), ThreadPoolExecutor(3) as callers:
        results = callers.map(same, range(300))
        for turn in range(30):
            library.set_threads(turn % 4 + 1)
        assert all(results)


def test_the_size_of_the_pool_is_checked() -> None:
    before = library.threads()
    for count in (0, -1, library.MAX_THREADS + 1):
        with pytest.raises(ValueError, match="threads must be 1 to 64"):
            library.set_threads(count)
    assert library.threads() == before
