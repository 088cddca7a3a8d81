from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import build_native
from tests.kernels.native.programs import compiled

CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"


def objects_of(target: build_native.Target) -> list[str]:
    return [str(target.objects / f"{source.stem}.o") for source in target.sources()]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not (shutil.which(CROSS) and shutil.which(EMULATOR)),
    reason=f"needs {CROSS} and {EMULATOR} (apt-get install g++-aarch64-linux-gnu qemu-user-static)",
)
def test_arm_gives_the_bits_of_this_processor(tmp_path: Path) -> None:
    """The library for 64-bit ARM is built whole; its products run in an emulator."""
    arm = build_native.Target(CROSS, "aarch64", build_native.OBJECTS.with_name("native-aarch64"), ("-O1",))
    build_native.build(arm, tmp_path / build_native.LIBRARY.name)
    program = compiled(tmp_path, "digest", "-static", *objects_of(arm), compiler=CROSS)
    emulated = subprocess.run(
        [EMULATOR, str(program), "neon-dotprod", "generic"], check=True, capture_output=True, text=True
    )
    lines = dict(line.split() for line in emulated.stdout.splitlines())
    assert set(lines) == {"neon-dotprod", "generic"}

    host = build_native.Target.host()
    build_native.build(host, tmp_path / "host.so")
    native = compiled(tmp_path, "digest", *objects_of(host))
    found = subprocess.run([str(native), "generic", "avx2", "avx512-vnni"], check=True, capture_output=True, text=True)
    assert {line.split()[1] for line in found.stdout.splitlines()} == set(lines.values())
    assert len(set(lines.values())) == 1
