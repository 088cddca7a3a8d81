"""No library that computes models reports to anybody that it was used."""

import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import os
from edgewise.models.onnx_session import RUNTIME
print(RUNTIME, len(os.listdir("/proc/self/task")))
"""


def test_onnx_runtime_starts_no_thread_and_keeps_no_identifier(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("onnxruntime-")
    assert done.stdout.split()[-1] == "1", done.stdout
    assert not list(tmp_path.rglob("*")), list(tmp_path.rglob("*"))
