"""The engine as its process builds it, with the starter model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from edgewise.engine.build import _log_choices, _set_threads
from edgewise.engine.networks import describe
from edgewise.engine.numerics import resolve
from edgewise.kernels.limits import PRODUCT_CACHE_BYTES
from edgewise.kernels.native import library
from edgewise.models.files import ModelFiles
from tests.kernels.native.using import using

LOAD = """
import json, pathlib, sys
import torch
from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.models.files import ModelFiles

def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

name, path, dtype, kernels, quantize, tiny = sys.argv[1:]
files = ModelFiles(name="starter", digest="sha256:0", format="gguf", paths={name: pathlib.Path(path)})
torch.zeros(1)
if kernels == "native":  # code that is paged in at its first use is no weight, and counts beside 100 MB
    from edgewise.models.decoder.native.loading import load_native
    from edgewise.models.tiny import local_files, make_tiny_model

    load_native(local_files(make_tiny_model(pathlib.Path(tiny), format="gguf")), dtype="float32", quantize="int8")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
before = status("VmRSS")
config = EngineConfig(
    model=files, dtype=dtype, kernels=kernels, quantize=quantize, device="cpu", threads=1, kv_memory_bytes=1 << 30
)
loaded = {}
engine = build(config, lambda phase, done: loaded.setdefault(phase, status("VmHWM") - before))
peak = status("VmHWM") - before
print(json.dumps({"peak": peak, "loading": loaded["check"], "resident": status("VmRSS") - before, **engine.memory().booked}))
"""


@pytest.mark.parametrize(
    ("kernels", "dtype", "quantize", "least"),
    [
        ("reference", "float32", "none", 500_000_000),
        ("reference", "bfloat16", "none", 250_000_000),
        ("native", "bfloat16", "none", 250_000_000),
        ("native", "auto", "int8", 140_000_000),
        ("native", "auto", "auto", 95_000_000),
    ],
)
def test_building_an_engine_peaks_at_little_more_than_its_weights(
    kernels: str, dtype: str, quantize: str, least: int, starter_files: ModelFiles, tmp_path: Path
) -> None:
    """Loading itself; and all that is touched until the engine can answer, with the products that its checks compile."""
    ((name, path),) = starter_files.paths.items()
    command = [sys.executable, "-c", LOAD, name, str(path), dtype, kernels, quantize, str(tmp_path / "tiny")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert sizes["resident"] >= sizes["weights"] > least, "the weights are resident, not mapped"
    assert sizes["kv_cache"] > sizes["weights"], "the cache is booked whole, and committed as it is written"
    assert sizes["loading"] <= 1.15 * sizes["weights"]
    assert sizes["peak"] <= 1.15 * sizes["weights"] + PRODUCT_CACHE_BYTES


def test_threads_beyond_those_of_native_kernels_are_not_claimed(
    tiny_model: ModelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    network = describe(tiny_model)
    numerics = resolve(
        device="cpu", dtype="auto", kv_dtype="int8", quantize="auto", cuda=False, kernels="native", network=network
    )
    torchs = torch.get_num_threads()
    with using(library.isa()), caplog.at_level("INFO"):
        _set_threads(library.MAX_THREADS + 1, numerics, network)
        _log_choices(numerics, library.MAX_THREADS + 1)
    torch.set_num_threads(torchs)
    said = {record.getMessage(): vars(record)["edgewise_fields"] for record in caplog.records}
    assert said["threads_limited"]["wanted"] == library.MAX_THREADS + 1
    assert said["kernels_chosen"]["threads"] == library.MAX_THREADS
