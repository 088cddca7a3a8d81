from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin.utils import load_plugin_from_script

import build_native
from edgewise.kernels.native import library

SCRIPT = Path(build_native.__file__)


def target(tmp_path: Path) -> build_native.Target:
    return build_native.Target.host()._replace(objects=tmp_path / "objects", extra=("-O0",))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that compile in a moment."""
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "value.h").write_text("constexpr int kValue = 1;\n")
    (sources / "one.cpp").write_text('#include "value.h"\nint one() { return kValue; }\n')
    (sources / "two.cpp").write_text("int two() { return 2; }\n")
    (sources / "isa_other.cpp").write_text("#error of another machine\n")
    monkeypatch.setattr(build_native, "SOURCES", sources)
    return sources


def compiled_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that the compiler is started for from now on."""
    seen: list[str] = []
    run = build_native.run

    def noting(command: list[str]) -> None:
        seen.extend(Path(word).name for word in command if word.endswith((".cpp", ".so")))
        run(command)

    monkeypatch.setattr(build_native, "run", noting)
    return seen


def test_only_what_changed_is_compiled_again(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, out = compiled_files(monkeypatch), tmp_path / "lib.so"
    build_native.build(target(tmp_path), out)
    assert sorted(seen) == ["lib.so", "one.cpp", "two.cpp"]
    seen.clear()
    build_native.build(target(tmp_path), out)
    assert seen == []
    (small / "two.cpp").write_text("int two() { return 3; }\n")
    build_native.build(target(tmp_path), out)
    assert seen == ["two.cpp", "lib.so"]
    seen.clear()
    (small / "value.h").write_text("constexpr int kValue = 3;\n")
    build_native.build(target(tmp_path), out)
    assert sorted(seen) == ["lib.so", "one.cpp", "two.cpp"]
    seen.clear()
    out.unlink()
    build_native.build(target(tmp_path), out)
    assert seen == ["lib.so"]


def test_a_header_changed_while_the_compiler_runs_is_compiled_by_the_next_build(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = build_native.run, tmp_path / "lib.so"

    def editing(command: list[str]) -> None:
        run(command)
        (small / "value.h").write_text("constexpr int kValue = 7;\n")

    monkeypatch.setattr(build_native, "run", editing)
    build_native.build(target(tmp_path), out)
    monkeypatch.setattr(build_native, "run", run)
    seen = compiled_files(monkeypatch)
    build_native.build(target(tmp_path), out)
    assert "one.cpp" in seen


def test_paths_may_have_spaces(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, out = small.rename(tmp_path / "with a space"), tmp_path / "lib.so"
    monkeypatch.setattr(build_native, "SOURCES", sources)
    seen = compiled_files(monkeypatch)
    build_native.build(target(tmp_path), out)
    for name in ("one.cpp", "value.h"):
        seen.clear()
        (sources / name).write_text((sources / name).read_text() + "// changed\n")
        build_native.build(target(tmp_path), out)
        assert "one.cpp" in seen


def test_records_that_cannot_be_read_say_nothing(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "lib.so"
    build_native.build(target(tmp_path), out)
    for name in ("one.json", "link.json"):
        (target(tmp_path).objects / name).write_text('{"comm')
    (target(tmp_path).objects / "two.json").write_bytes(b"\xff[]")
    seen = compiled_files(monkeypatch)
    build_native.build(target(tmp_path), out)
    assert sorted(seen) == ["lib.so", "one.cpp", "two.cpp"]
    seen.clear()
    build_native.build(target(tmp_path), out)
    assert seen == []


def test_where_nothing_can_be_written_only_what_is_up_to_date_will_do(tmp_path: Path, small: Path) -> None:
    made, out = target(tmp_path), tmp_path / "lib.so"
    build_native.build(made, out)
    (made.objects / "lock").unlink()
    (made.objects / "lock").mkdir()  # it can be opened by nobody, root included
    assert build_native.build(made, out) == out
    (small / "two.cpp").write_text("int two() { return 3; }\n")
    with pytest.raises(build_native.BuildFailed, match="must be writable") as caught:
        build_native.build(made, out)
    assert str(made.objects) in str(caught.value)
    assert "EDGEWISE_NO_NATIVE=1" in str(caught.value)


def test_the_compilers_message_is_in_the_error(tmp_path: Path, small: Path) -> None:
    (small / "two.cpp").write_text("int two() { return nonsense; }\n")
    with pytest.raises(build_native.BuildFailed, match="nonsense"):
        build_native.build(target(tmp_path), tmp_path / "lib.so")
    assert not (tmp_path / "lib.so").exists()


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "sudo apt-get install g++" in done.stderr
    assert "EDGEWISE_NO_NATIVE=1" in done.stderr


def hook(tmp_path: Path) -> Any:
    """Loaded as hatchling loads it, which puts no module into sys.modules."""
    found: Any = load_plugin_from_script(str(SCRIPT), "hatch_build.py", BuildHookInterface, "build_hook")
    return found(str(tmp_path), {}, None, None, str(tmp_path), "wheel")


def test_the_hook_puts_the_library_into_a_wheel_for_this_platform(tmp_path: Path) -> None:
    data: dict[str, Any] = {"artifacts": []}
    hook(tmp_path).initialize("standard", data)  # up to date: the installation built it
    assert data["artifacts"] == ["kernels/edgewise/kernels/native/libedgewise_native.so"]
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-linux_")


def test_native_kernels_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWISE_NO_NATIVE", "1")
    data: dict[str, Any] = {"artifacts": []}
    hook(tmp_path).initialize("standard", data)
    assert data == {"artifacts": []}


def asked(code: str, **variables: str) -> str:
    """What a process of its own prints with these environment variables."""
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_environment_chooses_the_instruction_set() -> None:
    say = "from edgewise.kernels.native import library as l; print(l.why_not() or l.isa())"
    assert asked(say, EDGEWISE_NATIVE_ISA="generic") == "generic"
    assert "EDGEWISE_NATIVE_ISA=sse9 is none of the instruction sets" in asked(say, EDGEWISE_NATIVE_ISA="sse9")
    assert (
        asked("import sys, edgewise.kernels.native.library as l; l.why_not(); print('torch' in sys.modules)") == "False"
    )


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_a_library_that_cannot_be_used_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    path = tmp_path / library.PATH.name
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(library, "PATH", path)
    library._load.cache_clear()
    try:
        reason = library.why_not()
        assert reason is not None
        assert ("was not built" if content is None else "cannot be loaded") in reason
        with pytest.raises(library.NativeUnavailable, match="native kernels are not available"):
            library.library()
    finally:
        library._load.cache_clear()


@pytest.mark.parametrize(
    ("number", "said"), [("ABI_VERSION", "version"), ("NATIVE_NUMERICS", "built of other sources")]
)
def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, number: str, said: str) -> None:
    monkeypatch.setattr(library, number, getattr(library, number) + 1)
    library._load.cache_clear()
    try:
        assert said in str(library.why_not())
        assert "build_native.py" in str(library.why_not())
    finally:
        library._load.cache_clear()


def test_no_function_of_one_instruction_set_can_serve_another(tmp_path: Path) -> None:
    """A linker keeps one of several weak symbols. Without optimization every inline function that is used has one."""
    host = build_native.Target.host()
    for source in host.sources():
        if not source.stem.startswith("isa_"):
            continue
        made = tmp_path / f"{source.stem}.o"
        build_native.run([*host.command(source, made), "-O0"])
        done = subprocess.run(["nm", "-C", str(made)], check=True, capture_output=True, text=True)
        symbols = [line[17:] for line in done.stdout.splitlines()]
        assert any(line.endswith("::kKernels") for line in symbols)
        # the personality routine is the C++ runtime's, the same for all
        assert [it for it in symbols if it[0] in "uVvWw" and "gxx_personality" not in it] == []
