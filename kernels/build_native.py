"""Build the native kernels: C++17 sources to `edgewise/kernels/native/libedgewise_native.so`.

A build hook of the wheel and of editable installs (pyproject.toml), and a program: `python kernels/build_native.py`. Needs the
standard library and a C++ compiler (g++ 9 or newer, or clang++); $CXX names another. Files are compiled in parallel; one whose
command, text and headers are those of the last build is not compiled again. With EDGEWISE_NO_NATIVE=1 nothing is built: the
engine then computes with the reference kernels and says so.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kernels" / "edgewise" / "kernels" / "native"
SOURCES = PACKAGE / "src"
LIBRARY = PACKAGE / "libedgewise_native.so"
OBJECTS = ROOT / "build" / "native"

# No contraction: products and sums are fused where the source says so, so that every instruction set gives the same bits.
COMMON_FLAGS = (
    *(
        "-std=c++17",
        "-O3",
        "-fPIC",
        "-fvisibility=hidden",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fno-trapping-math",
    ),
    *("-Wall", "-Wextra"),
    # Ours must be free of warnings; another compiler on a user's machine may know new ones.
    *(("-Werror",) if os.environ.get("EDGEWISE_NATIVE_STRICT") == "1" else ()),
)
# libstdc++ inside: the library then runs beside whatever other libraries of the process bring.
LINK_FLAGS = ("-shared", "-pthread", "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,-z,defs")
# Files named isa_* are compiled for one instruction set, all others for every processor of the machine type.
ISA_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "isa_avx2": ("-mavx2", "-mfma", "-mf16c"),
        # g++ 12 takes the undefined operands inside its own intrinsics for a mistake.
        "isa_avx512": (
            *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"),
            *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
        ),
    },
    "aarch64": {"isa_neon": ("-march=armv8.2-a+dotprod+fp16",)},
}
GENERIC_FLAGS = {"isa_generic": ("-O2",)}  # -O3 takes g++ half a minute more
NO_COMPILER = """no C++ compiler found: the native kernels need one.
  Debian, Ubuntu, JetPack: sudo apt-get install g++        Fedora: sudo dnf install gcc-c++
Or name one with CXX=..., or set EDGEWISE_NO_NATIVE=1 to install without native kernels (several times slower on a CPU)."""


class BuildFailed(Exception):
    """The message says what failed and what to do."""


class Target(NamedTuple):
    """What to build with, and for which machine. No dataclass: build backends load this file without naming it in sys.modules."""

    compiler: str
    machine: str
    objects: Path
    extra: tuple[str, ...] = ()  # flags after all others

    @staticmethod
    def host() -> Target:
        """This machine.

        Raises:
            BuildFailed: It has no C++ compiler.
        """
        return Target(find_compiler(), platform.machine(), OBJECTS)

    def sources(self) -> list[Path]:
        """The files of this machine: all but the instruction sets of others."""
        own = (*ISA_FLAGS.get(self.machine, {}), *GENERIC_FLAGS)
        found = sorted(SOURCES.glob("*.cpp"))
        return [path for path in found if not path.stem.startswith("isa_") or path.stem in own]

    def command(self, source: Path, out: Path) -> list[str]:
        isa = {**ISA_FLAGS.get(self.machine, {}), **GENERIC_FLAGS}.get(source.stem, ())
        return [self.compiler, *COMMON_FLAGS, *isa, *self.extra, "-MMD", "-c", str(source), "-o", str(out)]


def find_compiler() -> str:
    """$CXX, else c++, g++ or clang++.

    Raises:
        BuildFailed: There is none.
    """
    named = os.environ.get("CXX")
    for name in [named] if named else ["c++", "g++", "clang++"]:
        found = shutil.which(name)
        if found:
            return found
    raise BuildFailed(f"CXX={named} is not a program\n{NO_COMPILER}" if named else NO_COMPILER)


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(command)}\nfailed with code {done.returncode}:\n{done.stderr}")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def included(depfile: Path) -> list[Path]:
    """The files below SOURCES that a make rule written by the compiler names."""
    words = depfile.read_text().replace("\\\n", " ").split()
    return sorted({Path(word) for word in words if word.startswith(str(SOURCES))})


def up_to_date(record: Path, command: list[str], made: Path) -> bool:
    """The last build made this file with this command of inputs that are the same today."""
    if not record.exists() or not made.exists():
        return False
    last = json.loads(record.read_text())
    inputs: dict[str, str] = last["inputs"]
    return bool(last["command"] == command) and all(
        Path(name).exists() and digest(Path(name)) == seen for name, seen in inputs.items()
    )


def compile_one(target: Target, source: Path) -> Path:
    """Compile a file unless nothing changed; returns its object."""
    out = target.objects / f"{source.stem}.o"
    record, command = out.with_suffix(".json"), target.command(source, out)
    if not up_to_date(record, command, out):
        record.unlink(missing_ok=True)
        run(command)
        inputs = {str(path): digest(path) for path in included(out.with_suffix(".d"))}
        record.write_text(json.dumps({"command": command, "inputs": inputs}))
    return out


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One build at a time in a folder of objects."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compile_all(target: Target) -> list[Path]:
    """Compile what changed; returns all objects.

    Raises:
        BuildFailed: The compiler failed; its message is in the exception.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda source: compile_one(target, source), target.sources()))


def build(target: Target, library: Path = LIBRARY) -> Path:
    """Compile and link what changed. A process that has the old library loaded keeps it.

    Raises:
        BuildFailed: There is no compiler, or it failed.
    """
    with alone(target.objects):
        objects = compile_all(target)
        made = target.objects / library.name
        command = [target.compiler, *LINK_FLAGS, *map(str, objects), "-o", str(made)]
        record = target.objects / "link.json"
        if not up_to_date(record, command, library):
            run(command)
            part = library.with_suffix(".part")
            shutil.copy(made, part)
            part.replace(library)
            record.write_text(json.dumps({"command": command, "inputs": {str(path): digest(path) for path in objects}}))
    return library


def wanted() -> bool:
    return os.environ.get("EDGEWISE_NO_NATIVE", "") in ("", "0")


if importlib.util.find_spec("hatchling"):  # absent where this file runs alone
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class NativeBuildHook(BuildHookInterface[Any]):
        """Builds the library before the wheel is packed or the editable install is made."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
            """Build, and tag the wheel for this platform and any Python 3.

            Raises:
                SystemExit: The build failed; the message says why.
            """
            if not wanted():
                return
            try:
                library = build(Target.host())
            except BuildFailed as error:
                raise SystemExit(f"build_native: {error}") from None
            tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag}"
            build_data["artifacts"].append(str(library.relative_to(ROOT)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clean", action="store_true", help="compile everything anew")
    args = parser.parse_args()
    if args.clean:
        shutil.rmtree(OBJECTS, ignore_errors=True)
    try:
        print(build(Target.host()))
    except BuildFailed as error:
        sys.exit(f"build_native: {error}")


if __name__ == "__main__":
    main()
