"""The engine as its process builds it, with the starter model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from edgewise.models.files import ModelFiles

LOAD = """
import json, pathlib, sys
import torch
from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.models.files import ModelFiles

def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

name, path, dtype = sys.argv[1:]
files = ModelFiles(name="starter", digest="sha256:0", format="gguf", paths={name: pathlib.Path(path)})
torch.zeros(1)
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
before = status("VmRSS")
config = EngineConfig(model=files, dtype=dtype, device="cpu", threads=1, kv_memory_bytes=1 << 30)
engine = build(config, lambda phase, done: None)
peak = status("VmHWM") - before
print(json.dumps({"peak": peak, "resident": status("VmRSS") - before, **engine.memory().booked}))
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_building_an_engine_peaks_at_little_more_than_its_weights(dtype: str, starter_files: ModelFiles) -> None:
    """Everything that is touched until the engine can answer: weights, checks, tables, and the cache's first pages."""
    ((name, path),) = starter_files.paths.items()
    command = [sys.executable, "-c", LOAD, name, str(path), dtype]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert sizes["resident"] >= sizes["weights"] > 250_000_000, "the weights are resident, not mapped"
    assert sizes["kv_cache"] > sizes["weights"], "the cache is booked whole, and committed as it is written"
    assert sizes["peak"] <= 1.15 * sizes["weights"]
