"""The variants for 64-bit ARM in an emulator: which of them a processor gets, and that they give the bits of this one's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import build_native
from tests.kernels.native.programs import compiled

CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
# Best first, each with a processor that has nothing better.
PROCESSORS = {"neon-i8mm": "max", "neon-dotprod": "neoverse-n1", "generic": "cortex-a72"}

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


def emulated(program: Path, processor: str, *names: str) -> list[list[str]]:
    """The words of each line that `digest` prints; an instruction that the processor lacks would end it."""
    command = [EMULATOR, "-cpu", processor, str(program), *names]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_arm_gives_the_bits_of_this_processor(arm: Path, tmp_path: Path) -> None:
    digests = set()
    for name, processor in PROCESSORS.items():
        [(found, digest)] = emulated(arm, processor, name)
        assert found == name
        digests.add(digest)

    host = build_native.Target.host()
    build_native.build(host, tmp_path / "host.so")
    native = compiled(tmp_path, "digest", *objects_of(host))
    done = subprocess.run([str(native), "generic", "avx2", "avx512-vnni"], check=True, capture_output=True, text=True)
    assert {line.split()[1] for line in done.stdout.splitlines()} == digests
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("processor", "best"),
    [
        *((processor, name) for name, processor in PROCESSORS.items()),
        ("cortex-a76", "neon-dotprod"),  # as Orin's Cortex-A78AE
    ],
)
def test_a_processor_gets_the_best_that_it_has(arm: Path, processor: str, best: str) -> None:
    assert emulated(arm, processor) == [[best]]
    names = list(PROCESSORS)
    for better in names[: names.index(best)]:
        assert emulated(arm, processor, better) == []
