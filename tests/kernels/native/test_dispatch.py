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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86-64 processor")
def test_avx512_without_vnni_takes_avx2(tmp_path: Path) -> None:
    """Skylake-X has no VNNI, and no emulator at hand has AVX-512: what is decided, not what runs."""
    host = build_native.Target.host()
    with build_native.alone(host.objects):
        objects = build_native.compile_all(host)
        program = compiled(tmp_path, "choice", *map(str, objects))
    lines = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    fits = {name: (bool(int(wide)), bool(int(narrow))) for name, wide, narrow in (line.split() for line in lines)}
    assert fits == {
        "none": (True, True),
        "avx2": (False, False),
        "fma": (False, False),
        "f16c": (False, False),
        "avx512": (False, True),
        "vnni": (False, True),
    }
