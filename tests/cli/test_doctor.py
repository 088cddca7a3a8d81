from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgewise.cli import doctor_checks
from edgewise.cli.doctor_checks import check_certificate, check_native, check_torch, probe_torch
from edgewise.core.settings import Settings, load_settings
from edgewise.kernels.native import library

Run = Callable[..., "subprocess.CompletedProcess[str]"]
CPU = {"ok": True, "error": 1e-7, "bf16_native": False, "capability": "AVX2", "threads": 2, "seconds": 0.1}
GPU = {
    "name": "Orin",
    "capability": "8.7",
    "free_bytes": 2**32,
    "total_bytes": 2**33,
    "bf16_native": True,
    "ok": True,
    "error": 1e-7,
}
ABSENT = {"available": False, "reason": "this torch is built without CUDA", "devices": []}


def port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_a_machine_without_a_model(run: Run) -> None:
    done = run("doctor", "--json", EDGEWISE_PORT=port())
    report = json.loads(done.stdout)
    found = {check["name"]: check for check in report["checks"]}
    assert done.returncode == 1
    assert report["ok"] is False
    assert found["model"]["status"] == "fail"
    assert found["model"]["remedy"] == "`edgewise models pull starter`"
    for name in ("python", "clock", "configuration", "port", "tls", "torch", "cpu kernel"):
        assert found[name]["status"] == "ok", found[name]
    assert "matmul differs from numpy" in found["cpu kernel"]["detail"]
    assert {"memory", "state folder", "cuda kernel", "systemd"} < set(found)


def test_a_bad_configuration_is_one_of_the_findings(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("prot = 1")
    done = run("doctor", "--config", str(file), PATH=os.environ["PATH"])
    assert done.returncode == 1
    assert "unknown key `prot`" in done.stdout
    assert "cpu kernel" in done.stdout
    assert "checks failed: configuration" in done.stderr


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a program that stands for the probe, and return its name."""

    def write(code: str) -> str:
        (tmp_path / "stand_in.py").write_text(code)
        return "stand_in"

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return write


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was ended by SIGSEGV"),
        ("raise ImportError('libcudart.so.12: cannot open')", "ImportError: libcudart.so.12: cannot open"),
        ("import sys; sys.exit(3)", "it gave no reason"),
    ],
)
def test_a_torch_that_crashes(module: Callable[[str], str], code: str, failure: str) -> None:
    (check,) = check_torch(probe_torch(module(code)))
    assert (check.status, check.detail) == ("fail", failure)
    assert "install a torch" in check.remedy


def test_a_torch_that_hangs(module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_TORCH_TIMEOUT_S", 0.2)
    (check,) = check_torch(probe_torch(module("import time; time.sleep(60)")))
    assert check.detail.startswith("no result after")


def test_noise_before_the_report_does_not_matter(module: Callable[[str], str]) -> None:
    assert probe_torch(module("print('warning'); print('{\"torch\": \"2\"}')")) == {"torch": "2"}


def statuses(cpu: dict[str, Any], cuda: dict[str, Any]) -> list[tuple[str, str]]:
    return [(check.name, check.status) for check in check_torch({"torch": "2.9", "cpu": cpu, "cuda": cuda})]


def test_back_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_NVIDIA_NODES", ())
    cuda = {"available": True, "reason": "", "devices": [GPU, {**GPU, "ok": False}]}
    assert statuses(CPU, cuda)[1:] == [("cpu kernel", "ok"), ("cuda kernel", "ok"), ("cuda kernel", "fail")]
    assert statuses({**CPU, "ok": False}, ABSENT)[1:] == [("cpu kernel", "fail"), ("cuda kernel", "ok")]


@pytest.mark.parametrize(
    ("capability", "said"), [("8.7", "no fp8 (it comes with 8.9)"), ("8.9", ", fp8;"), ("12.0", ", fp8;")]
)
def test_whether_a_gpu_has_fp8_is_said(capability: str, said: str) -> None:
    cuda = {"available": True, "reason": "", "devices": [{**GPU, "capability": capability}]}
    checks = {check.name: check for check in check_torch({"torch": "2.9", "cpu": CPU, "cuda": cuda})}
    assert said in checks["cuda kernel"].detail


def test_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_NVIDIA_NODES", ("/dev/null",))
    assert statuses(CPU, ABSENT)[-1] == ("cuda kernel", "warn")


def test_certificates() -> None:
    assert check_certificate(Settings()).status == "ok"
    assert check_certificate(Settings(host="0.0.0.0")).status == "warn"
    missing = {"EDGEWISE_TLS__CERT": "/nonexistent.pem", "EDGEWISE_TLS__KEY": "/nonexistent.pem"}
    check = check_certificate(load_settings(environ=missing, default_file=Path("/nonexistent")).settings)
    assert (check.status, "cannot be read" in check.detail) == ("fail", True)


def test_the_probe_is_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgewise.cli.torch_probe"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    report = json.loads(done.stdout)
    assert report["cpu"]["ok"]
    assert report["cpu"]["error"] < 1e-5


def test_missing_native_kernels_are_a_warning_and_a_fault_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings()
    assert check_native(settings).status == "ok"
    monkeypatch.setattr(library, "why_not", lambda: "the library was not built")
    slow = check_native(settings)
    assert (slow.status, "not built" in slow.detail, "far slower" in slow.detail) == ("warn", True, True)
    asked = settings.model_copy(update={"engine": settings.engine.model_copy(update={"kernels": "native"})})
    assert check_native(asked).status == "fail"
