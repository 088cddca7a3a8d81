"""What engines will find: no question to torch where there is no GPU, and its answer where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewise.core.errors import EngineUnavailable
from edgewise.engine import machine
from edgewise.engine.machine import Machine, look


def cpu(found: Machine) -> bool:
    return not found.cuda and found.capability is None and found.available > 0


@pytest.mark.parametrize("device", ["cpu", "auto"])
async def test_without_a_gpu_torch_is_not_asked(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PROBE", "no.such.module")
    if device == "cpu":
        (tmp_path / "nvidia0").touch()
    assert cpu(await look(device, tmp_path))


def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> Path:
    (tmp_path / "edgewise_fake_probe.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(machine, "PROBE", "edgewise_fake_probe")
    (tmp_path / "nvidia0").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("answer", "capability", "free"),
    [
        ({"cuda": True, "capability": [9, 0], "free_bytes": 1 << 30}, (9, 0), 1 << 30),
        ({"cuda": True, "capability": [8, 7], "free_bytes": None}, (8, 7), None),
        ({"cuda": False, "capability": None, "free_bytes": None}, None, None),
    ],
    ids=["card", "shared memory", "torch without cuda"],
)
async def test_with_a_gpu_torch_says_what_there_is(
    answer: dict[str, object],
    capability: tuple[int, int] | None,
    free: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await look("auto", probe(tmp_path, monkeypatch, f"print({json.dumps(json.dumps(answer))})"))
    assert (found.cuda, found.capability) == (answer["cuda"], capability)
    assert found.available == free if free is not None else found.available > 0


async def test_a_torch_that_fails_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineUnavailable, match=r"driver is broken.*edgewise doctor"):
        await look("auto", probe(tmp_path, monkeypatch, "raise SystemExit('driver is broken')"))


async def test_a_gpu_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = probe(tmp_path, monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(machine, "PROBE_S", 0.5)
    with pytest.raises(EngineUnavailable, match="did not answer"):
        await look("auto", folder)
