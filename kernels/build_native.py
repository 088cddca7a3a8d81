"""Build the native kernels: C++17 sources to `edgewise/kernels/native/libedgewise_native.so`.

A build hook of the wheel and of editable installs (pyproject.toml), and a program: `python kernels/build_native.py`. Needs the
standard library and a C++ compiler (g++ 9 or newer, on ARM 10, or clang++); $CXX names another. Files are compiled in parallel;
one is not compiled again if its command, its text and all headers are those of the last build. Where nothing changed nothing is
written.
With EDGEWISE_NO_NATIVE=1 nothing is built: the engine then computes with the reference kernels and says so.
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
    "aarch64": {
        "isa_neon": ("-march=armv8.2-a+dotprod+fp16",),
        "isa_i8mm": ("-march=armv8.2-a+dotprod+fp16+i8mm",),
    },
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
        return [self.compiler, *COMMON_FLAGS, *isa, *self.extra, "-c", str(source), "-o", str(out)]


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


def source_digests() -> dict[str, str]:
    """Of every file of SOURCES by name. Taken before a compiler starts: an edit while it runs then counts as a change."""
    return {path.name: digest(path) for path in sorted(SOURCES.iterdir()) if path.is_file()}


def inputs_of(source: Path, seen: dict[str, str]) -> dict[str, str]:
    """What an object is made of: its source, and any header."""
    return {name: value for name, value in seen.items() if name == source.name or name.endswith(".h")}


def up_to_date(record: Path, command: list[str], inputs: dict[str, str], made: Path) -> bool:
    """The last build made this file with this command of these inputs; a record that cannot be read says nothing."""
    try:
        return made.exists() and bool(json.loads(record.read_text()) == {"command": command, "inputs": inputs})
    except (OSError, ValueError):
        return False


def write_record(record: Path, command: list[str], inputs: dict[str, str]) -> None:
    part = record.with_suffix(".part")
    part.write_text(json.dumps({"command": command, "inputs": inputs}))
    part.replace(record)


def object_of(target: Target, source: Path) -> Path:
    return target.objects / f"{source.stem}.o"


def is_compiled(target: Target, source: Path, seen: dict[str, str]) -> bool:
    """Its object is that of these digests."""
    out = object_of(target, source)
    return up_to_date(out.with_suffix(".json"), target.command(source, out), inputs_of(source, seen), out)


def compile_one(target: Target, source: Path, seen: dict[str, str]) -> Path:
    """Compile a file unless nothing changed; returns its object."""
    out = object_of(target, source)
    if not is_compiled(target, source, seen):
        record, command = out.with_suffix(".json"), target.command(source, out)
        record.unlink(missing_ok=True)
        run(command)
        write_record(record, command, inputs_of(source, seen))
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
    seen = source_digests()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda source: compile_one(target, source, seen), target.sources()))


def link_command(target: Target, objects: Sequence[Path], library: Path) -> list[str]:
    return [target.compiler, *LINK_FLAGS, *map(str, objects), "-o", str(target.objects / library.name)]


def is_linked(target: Target, objects: Sequence[Path], library: Path) -> bool:
    """The library is that of these objects, which exist."""
    inputs = {str(path): digest(path) for path in objects}
    return up_to_date(target.objects / "link.json", link_command(target, objects, library), inputs, library)


def is_built(target: Target, library: Path) -> bool:
    """Nothing changed since the last build. Writes nothing, so a folder that cannot be written to will do."""
    seen, sources = source_digests(), target.sources()
    objects = [object_of(target, source) for source in sources]
    return all(is_compiled(target, source, seen) for source in sources) and is_linked(target, objects, library)


def build(target: Target, library: Path = LIBRARY) -> Path:
    """Compile and link what changed. A process that has the old library loaded keeps it.

    Raises:
        BuildFailed: The compiler failed, or a folder cannot be written to.
    """
    try:
        if not is_built(target, library):
            with alone(target.objects):
                link(target, compile_all(target), library)
    except OSError as error:
        raise BuildFailed(
            f"{error}: {target.objects} and {library.parent} must be writable to build the native kernels. Or set "
            "EDGEWISE_NO_NATIVE=1 to install without them (several times slower on a CPU)."
        ) from error
    return library


def link(target: Target, objects: Sequence[Path], library: Path) -> None:
    """Make the library of these objects unless it is that already."""
    if is_linked(target, objects, library):
        return
    command = link_command(target, objects, library)
    run(command)
    part = library.with_suffix(".part")
    shutil.copy(target.objects / library.name, part)
    part.replace(library)
    write_record(target.objects / "link.json", command, {str(path): digest(path) for path in objects})


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
