"""An instruction set is chosen only where the processor has all that its file is compiled for."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import build_native
from tests.kernels.native.programs import compiled

EMULATOR = "qemu-x86_64-static"


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which(EMULATOR),
    reason=f"needs an x86-64 processor and {EMULATOR} (apt-get install qemu-user-static)",
)
def test_avx2_needs_fma_and_f16c_too(tmp_path: Path) -> None:
    host = build_native.Target.host()
    with build_native.alone(host.objects):
        objects = build_native.compile_all(host)
        program = compiled(tmp_path, "digest", "-static", *map(str, objects))

    def found(processor: str) -> list[str]:
        command = [EMULATOR, "-cpu", processor, str(program), "avx2"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [line.split()[0] for line in done.stdout.splitlines()]

    assert found("max") == ["avx2"]
    for lacking in ("avx2", "fma", "f16c"):
        assert found(f"max,-{lacking}") == []
