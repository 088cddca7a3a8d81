"""Tests that hand wrong numbers to the native kernels, and those of all formats, in a library that notices accesses outside.

Compiling for that takes minutes, so they run by hand, after a change of the C++: `EDGEWISE_SANITIZERS=1 python -m pytest
tests/kernels/native/test_sanitizers.py -s`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import build_native

ROOT = Path(__file__).resolve().parents[3]
FLAGS = ("-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
TESTS = (
    "tests/models/decoder/test_native_bounds.py",
    "tests/models/decoder/test_native_adapters.py",
    "tests/kernels/native/test_native_sample.py",
    "tests/kernels/native/test_packed.py",
    "tests/kernels/native/test_quantized_linear.py",
    "tests/kernels/native/test_native_attention.py",
)
OBJECTS = build_native.OBJECTS.with_name("native-asan")
RUN = """
import sys
from pathlib import Path
from edgewise.kernels.native import library
library.PATH = Path(sys.argv[1])
assert library.why_not() is None, library.why_not()
import pytest
# a report goes past Python to the process's own stderr, which pytest must not keep: the process ends at once
sys.exit(pytest.main(["-q", "-x", "--capture=sys", "-p", "no:cacheprovider", "-p", "no:randomly", *sys.argv[2:]]))
"""


def runtime(compiler: str) -> str | None:
    """The sanitizer's shared library, which a process that loads the kernels must have from its start."""
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    path = Path(found.stdout.strip())
    return str(path.resolve()) if path.is_absolute() and path.exists() else None


def compile_all(host: build_native.Target) -> list[Path]:
    """All objects, optimized but for the plain C++, which takes g++ minutes with these flags."""
    seen = build_native.source_digests()

    def one(source: Path) -> Path:
        level = "-O0" if source.stem == "isa_generic" else "-O1"
        return build_native.compile_one(host._replace(objects=OBJECTS, extra=(level, *FLAGS)), source, seen)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, host.sources()))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.environ.get("EDGEWISE_SANITIZERS") != "1", reason="takes minutes: EDGEWISE_SANITIZERS=1 runs it")
def test_nothing_is_read_or_written_outside(tmp_path: Path) -> None:
    """AddressSanitizer and UBSan end the process at the first fault, with code 1 and a report."""
    compiler = build_native.find_compiler()
    asan = runtime(compiler)
    if asan is None:
        pytest.skip(f"{compiler} has no AddressSanitizer (libasan.so)")
    with build_native.alone(OBJECTS):
        objects = compile_all(build_native.Target.host())
    made = tmp_path / "libedgewise_native.so"
    build_native.run([compiler, "-shared", "-pthread", *FLAGS, *map(str, objects), "-o", str(made)])
    options = {
        "LD_PRELOAD": asan,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python and torch keep what they have to the end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(made), *TESTS],
        cwd=ROOT,
        env=os.environ | options,
        check=False,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[:8000]
    assert "passed" in done.stdout
