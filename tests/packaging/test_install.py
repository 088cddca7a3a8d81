"""`make install`: which torch is taken, when nothing is done, and what is said when system packages are missing."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import install

ROOT = Path(__file__).resolve().parents[2]
VERSION = install.locked_torch()


class FakePip(install.Pip):
    """Offers the versions given; would fetch the URLs given."""

    def __init__(self, versions: list[str], urls: list[str] | None = None) -> None:
        self._versions = versions
        self._urls = urls or []

    def torch_versions(self) -> list[str]:
        return self._versions

    def plan(self, *args: str) -> list[str]:
        return self._urls


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No GPU, no Jetson, no network; a test changes what it wants."""
    monkeypatch.setattr(install, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(install, "is_jetson", lambda: False)
    monkeypatch.setattr(install, "reachable", lambda url: False)
    return monkeypatch


@pytest.fixture
def file_server(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "a.whl").write_bytes(b"x" * 1500)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_cpu_build_at_hand_is_taken(machine: pytest.MonkeyPatch) -> None:
    assert install.torch_arguments(FakePip(["9.9", f"{VERSION}+cpu", VERSION]), None) == [f"torch=={VERSION}+cpu"]


def test_else_the_cpu_index_if_it_can_be_reached(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(install, "reachable", lambda url: url.startswith(install.CPU_INDEX))
    arguments = install.torch_arguments(FakePip([VERSION]), None)
    assert arguments == [f"torch=={VERSION}+cpu", "--extra-index-url", install.CPU_INDEX]


def test_else_the_default_build_with_its_size_said_first(
    machine: pytest.MonkeyPatch, file_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.setattr(install, "GIGABYTE", 1000)
    urls = [f"{file_server}/a.whl"] * 2
    assert install.torch_arguments(FakePip([VERSION], urls), None) == [f"torch=={VERSION}"]
    assert "3.0 GB to download" in capsys.readouterr().out


@pytest.mark.parametrize("urls", [[], ["http://127.0.0.1:9/nothing.whl"]])
def test_an_unknown_size_is_said_as_an_estimate(
    machine: pytest.MonkeyPatch, urls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    install.torch_arguments(FakePip([VERSION], urls), None)
    assert "about 3 GB" in capsys.readouterr().out


def test_a_gpu_gets_the_default_build_even_beside_a_cpu_build(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(install, "has_nvidia_gpu", lambda: True)
    assert install.torch_arguments(FakePip([f"{VERSION}+cpu", VERSION]), None) == [f"torch==={VERSION}"]


def test_an_index_that_the_user_names_wins(machine: pytest.MonkeyPatch) -> None:
    arguments = install.torch_arguments(FakePip([f"{VERSION}+cpu"]), "https://example.org/torch")
    assert arguments == [f"torch=={VERSION}", "--index-url", "https://example.org/torch"]


def test_a_long_silence_of_pip_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    code = install.run_with_signs_of_life(
        [sys.executable, "-c", "import time; time.sleep(0.5); raise SystemExit(3)"], 0.1
    )
    assert code == 3
    assert "install:   still at it after" in capsys.readouterr().out


def make_packages(environment: Path) -> tuple[Path, Path]:
    """An environment's python and folder of packages."""
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    return python, packages


def test_bytecode_is_made_meanwhile_and_what_does_not_compile_or_is_seldom_imported_is_left(tmp_path: Path) -> None:
    """Also where the environment itself lies in a folder of tests."""
    python, packages = make_packages(tmp_path / "tests" / "(it)" / ".venv")
    (packages / "one" / "tests").mkdir(parents=True)
    (packages / "tests").mkdir()
    (packages / "one" / "right.py").write_text("x = 1\n")
    (packages / "one" / "template.py").write_text("x = {{ x }\n")
    (packages / "one" / "tests" / "test_right.py").write_text("x = 1\n")
    (packages / "tests" / "test_all.py").write_text("x = 1\n")
    (packages / "transformers" / "models" / "one").mkdir(parents=True)
    (packages / "transformers" / "models" / "one" / "seldom.py").write_text("x = 1\n")
    (packages / "models").mkdir()
    (packages / "models" / "often.py").write_text("x = 1\n")
    with install.compiling(python):
        pass
    assert {file.name.partition(".")[0] for file in packages.rglob("*.pyc")} == {"right", "often"}


def test_bytecode_that_takes_long_breaks_its_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python, _ = make_packages(tmp_path / ".venv")
    python.unlink()
    python.write_text("#!/bin/sh\nsleep 0.5\n")
    python.chmod(0o755)
    with install.compiling(python, every_s=0.1):
        pass
    assert "install:   still at it after" in capsys.readouterr().out


def test_nothing_is_done_when_the_stamp_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(path: Path) -> Path:
        raise AssertionError("the environment was touched")

    monkeypatch.setattr(install, "make_venv", never)
    (tmp_path / install.STAMP).write_text(install.stamp_value(None))
    install.install(tmp_path, None)
    with pytest.raises(AssertionError, match="touched"):
        install.install(tmp_path, "https://example.org/another")


def system_packages(
    tmp_path: Path, programs: dict[str, str], *linked: str, native: str = "1"
) -> subprocess.CompletedProcess[str]:
    """Run the check of system packages where only these programs exist."""
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in linked:
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    command = ["/bin/bash", str(ROOT / "scripts" / "system_packages.sh"), "python3"]
    environment = {"PATH": str(tmp_path), "SSL_CERT_FILE": "/dev/null", "EDGEWISE_NO_NATIVE": native}
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)


ORDINARY_USER = "#!/bin/bash\necho 1000\n"
ROOT_USER = "#!/bin/bash\necho 0\n"


def test_without_root_it_names_exactly_what_is_missing(tmp_path: Path) -> None:
    done = system_packages(tmp_path, {"id": ORDINARY_USER, "curl": "#!/bin/bash\n"})
    assert done.returncode == 1
    assert "missing system packages: python3 python3-venv\n" in done.stderr
    assert "sudo apt-get install python3 python3-venv" in done.stderr


def test_a_compiler_is_needed_unless_native_kernels_are_not_wanted(tmp_path: Path) -> None:
    programs = {"id": ORDINARY_USER, "curl": "#!/bin/bash\n", "python3": "#!/bin/bash\n"}
    assert "missing system packages: g++\n" in system_packages(tmp_path, programs, native="").stderr
    assert system_packages(tmp_path, programs, native="1").returncode == 0
    assert system_packages(tmp_path, {**programs, "clang++": "#!/bin/bash\n"}, native="").returncode == 0


def test_a_python_without_venv_is_told_from_a_missing_one(tmp_path: Path) -> None:
    python = '#!/bin/bash\ncase "$2" in *ensurepip*) exit 1;; *print*) echo 3.11;; esac\n'
    done = system_packages(tmp_path, {"id": ORDINARY_USER, "python3": python, "curl": "#!/bin/bash\n"})
    assert done.returncode == 1
    assert "missing system packages: python3.11-venv\n" in done.stderr


def test_an_old_python_is_refused_by_its_version(tmp_path: Path) -> None:
    python = '#!/bin/bash\n[ "$1" = --version ] && echo "Python 3.8.1" && exit 0\nexit 1\n'
    done = system_packages(tmp_path, {"id": ORDINARY_USER, "python3": python})
    assert done.returncode == 1
    assert "Python 3.8.1" in done.stderr
    assert "make install PYTHON=" in done.stderr


def test_with_root_apt_installs_what_is_missing(tmp_path: Path) -> None:
    apt = f'#!/bin/bash\necho "$@" >> {tmp_path}/apt.log\n'
    python = "#!/bin/bash\nexit 0\n"
    done = system_packages(tmp_path, {"id": ROOT_USER, "apt-get": apt, "python3": python}, "env", "bash")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "apt.log").read_text().splitlines()
    assert calls[0].startswith("update")
    assert calls[1].endswith("curl")


def test_with_everything_there_nothing_is_said(tmp_path: Path) -> None:
    done = system_packages(tmp_path, {"python3": "#!/bin/bash\nexit 0\n", "curl": "#!/bin/bash\n"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
