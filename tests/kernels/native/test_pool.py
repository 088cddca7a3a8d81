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


def test_the_size_of_the_pool_is_checked() -> None:
    before = library.threads()
    for count in (0, -1, library.MAX_THREADS + 1):
        with pytest.raises(ValueError, match="threads must be 1 to 64"):
            library.set_threads(count)
    assert library.threads() == before
