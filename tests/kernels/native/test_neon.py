"""The variants for 64-bit ARM in an emulator: which of them a processor gets, and that they give the bits of this one's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import build_native
from tests.kernels.native.programs import compiled

CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
NAMES = ("neon-i8mm", "neon-dotprod", "generic")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (shutil.which(CROSS) and shutil.which(EMULATOR)),
        reason=f"needs {CROSS} and {EMULATOR} (apt-get install g++-aarch64-linux-gnu qemu-user-static)",
    ),
]


def objects_of(target: build_native.Target) -> list[str]:
    return [str(target.objects / f"{source.stem}.o") for source in target.sources()]


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `digest` for 64-bit ARM, of the objects of a library that is built whole."""
    folder = tmp_path_factory.mktemp("arm")
    target = build_native.Target(CROSS, "aarch64", build_native.OBJECTS.with_name("native-aarch64"), ("-O1",))
    build_native.build(target, folder / build_native.LIBRARY.name)
    return compiled(folder, "digest", "-static", *objects_of(target), compiler=CROSS)


def emulated(program: Path, processor: str, *names: str) -> list[str]:
    command = [EMULATOR, "-cpu", processor, str(program), *names]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_arm_gives_the_bits_of_this_processor(arm: Path, tmp_path: Path) -> None:
    lines = dict(line.split() for line in emulated(arm, "max", *NAMES))
    assert set(lines) == set(NAMES)

    host = build_native.Target.host()
    build_native.build(host, tmp_path / "host.so")
    native = compiled(tmp_path, "digest", *objects_of(host))
    found = subprocess.run([str(native), "generic", "avx2", "avx512-vnni"], check=True, capture_output=True, text=True)
    assert {line.split()[1] for line in found.stdout.splitlines()} == set(lines.values())
    assert len(set(lines.values())) == 1


@pytest.mark.parametrize(
    ("processor", "usable"),
    [
        ("max", NAMES),
        ("neoverse-n1", NAMES[1:]),  # dot products only, as Orin's Cortex-A78AE
        ("cortex-a76", NAMES[1:]),
        ("cortex-a72", NAMES[2:]),
    ],
)
def test_a_processor_gets_the_best_that_it_has(arm: Path, processor: str, usable: tuple[str, ...]) -> None:
    assert emulated(arm, processor) == [usable[0]]
    lines = [line.split() for line in emulated(arm, processor, *NAMES)]
    assert tuple(name for name, _ in lines) == usable
    assert len({digest for _, digest in lines}) == 1
