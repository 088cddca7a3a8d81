"""The reports of a card without one: parts are small programs, figures are made up here, kernels run under the interpreter."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.accept import fast_2, gpu_record
from tests.accept.line import NotRun
from tests.bench import gpu_all
from tests.bench.gpu_all import Part, go, parts
from tests.kernels.interpreter import interpreted

interpreted("decode_attention")

from edgewise.kernels.triton.decode_attention import AttentionForm  # noqa: E402 - Triton must be told to interpret
from tests.bench import gpu_attention, gpu_side_by_side  # noqa: E402 - Triton must be told to interpret before it is imported
from tests.bench.gpu_lines import LINES, MIXTURES, lines_of  # noqa: E402


def part(name: str, code: str, limit_s: float = 60, **environment: str) -> Part:
    return Part(name=name, command=("-c", code, "{out}"), limit_s=limit_s, environment=tuple(environment.items()))


def again(todo: list[Part], out: Path, *, failed: bool = False) -> dict[str, Any]:
    report = go(todo, out, failed_again=failed, machine={"card": "x"})
    assert json.loads(out.read_text()) == report
    parts_of: dict[str, Any] = report["parts"]
    return parts_of


def test_parts_end_by_themselves_and_a_report_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, marks = tmp_path / "all.json", tmp_path / "marks"
    writes = "import os, sys; open(sys.argv[1], 'w').write('[1, ' + os.environ['NUMBER'] + ']')"
    count = f"open({str(marks)!r}, 'a').write('x'); print('{{\"a\": 3}}')"
    todo = [
        part("writes", writes, NUMBER="2"),
        part("fails", f"{count}; raise SystemExit(3)"),
        part(
            "hangs",
            "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])",
            1.5,
        ),
    ]
    found = again(todo, out)
    assert [found[it.name]["ok"] for it in todo] == [True, False, False]
    assert found["writes"]["result"] == [1, 2]
    assert found["fails"]["ended"] == "code 3"
    assert found["fails"]["result"] == {"a": 3}
    assert found["hangs"]["ended"] == "after 2 s by the limit"
    again(todo[:2], out)
    assert marks.read_text() == "x"
    again(todo[:2], out, failed=True)
    assert marks.read_text() == "xx"
    monkeypatch.setattr(gpu_all, "code_digest", lambda: "other")
    assert "hangs" not in again(todo[:2], out)
    assert marks.read_text() == "xxx"


def test_what_a_budget_cuts_is_begun_again(tmp_path: Path) -> None:
    out = tmp_path / "all.json"
    todo = [part("first", "pass"), part("long", "import time; time.sleep(60)"), part("last", "pass")]
    report = go(todo, out, failed_again=False, machine={}, budget_s=6)
    assert list(report["parts"]) == ["first"]
    todo[1] = part("long", "pass")
    assert list(go(todo, out, failed_again=False, machine={})["parts"]) == ["first", "long", "last"]


def test_a_cut_is_told_from_a_failure_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded seconds of a part may be less than those that were left, or as many."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(gpu_all, "time", clock)

    def run_part(part: Part, folder: Path) -> dict[str, Any]:
        now[0] += 5.96 if part.name == "fails" else part.limit_s
        return {"ok": False, "ended": "?", "seconds": 6.0 if part.name == "fails" else 5.9, "output": ""}

    monkeypatch.setattr(gpu_all, "run_part", run_part)
    todo = [part("fails", ""), part("cut", "")]
    assert list(go(todo, tmp_path / "a.json", failed_again=False, machine={}, budget_s=5.98)["parts"]) == ["fails"]
    assert list(go(todo[1:], tmp_path / "b.json", failed_again=False, machine={}, budget_s=5.94)["parts"]) == []


def test_the_engine_is_there_without_packages_of_the_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has torch and Triton alone."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llguidance" else find(name))
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('fastapi', 'uvicorn', 'pydantic', 'typer', 'aiomqtt', 'onnxruntime')))\n"
        "import edgewise.engine.build, llguidance; print('{\"from\": \"' + llguidance.__file__ + '\"}')"
    )
    found = again([part("imports", code)], tmp_path / "all.json")["imports"]
    assert found["ok"], found["output"]
    assert "stand_ins" in found["result"]["from"]


def test_every_line_of_the_table_is_in_a_part(tmp_path: Path) -> None:
    todo = list(parts(tmp_path, "python", 2))
    assert todo[0].name == "promises"
    assert todo[-1].name == "beside vllm"
    assert len({it.name for it in todo}) == len(todo)
    for kind in ("default", "tune ", "tuned"):
        words = [it.command[it.command.index("--lines") + 1 :] for it in todo if it.name.startswith(kind)]
        measured = sorted(line.name for own in words for line in lines_of(own))
        assert measured == sorted(line.name for line in (*LINES, *MIXTURES)), kind


def test_sides_meet_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def ours(lines: Any, tuned: Path | None) -> dict[str, float]:
        turns.append("ours")
        return {line.name: 1000.0 if line.prefill else 2.0 for line in lines}

    def peer(python: str, shape: str, kv: str, one_process: bool) -> dict[str, tuple[float, float]]:
        turns.append(f"{shape} {kv}")
        return {"1x128": (3.0, 1.0), "1x32000": (4.0, 500.0), "16x8000": (6.0, 1.0)}

    monkeypatch.setattr(gpu_side_by_side, "ours", ours)
    monkeypatch.setattr(gpu_side_by_side, "peer", peer)
    found = {line["line"]: line for line in gpu_side_by_side.measure("python", None, 2)}
    assert list(found) == [line.name for line in LINES]
    assert found["decode llama-8b 1x128"]["ratio"] == 1.5
    assert found["decode llama-8b 1x128"]["met"] is True
    assert found["prefill llama-1b 1x32000"]["ratio"] == 2.0
    assert found["prefill llama-1b 1x32000"]["met"] is False
    assert found["decode llama-8b 16x8000 int8"]["peer"] == 6.0
    assert found["decode llama-8b 1x128 int4"]["ratio"] is None
    starts = ("llama-1b bfloat16", "llama-3b bfloat16", "llama-8b bfloat16", "llama-8b fp8")
    assert turns == [turn for start in starts for turn in ("ours", start) * 2]
    assert "ratio 1.50" in gpu_side_by_side.show(found["decode llama-8b 1x128"])


def made(**changes: Any) -> dict[str, Any]:
    line = {"line": "decode a", "value": 1.0, "peer": 2.0, "ratio": 2.0, "goal": 1.5, "met": True}
    needle = {"context": 8192, "kv": "int8", "lost": False}
    runs = [{"cold": True, "first_token": 60.0}, {"cold": False, "first_token": 4.5}]
    record = {
        "code": gpu_record.code_digest(),
        "time": "2026-11-30T00",
        "card": "X",
        "lines": [line],
        "needles": [needle],
    }
    return {**record, "load": {"runs": runs}, **changes}


def test_a_record_is_judged_by_the_bars() -> None:
    good = fast_2.judged(made())
    assert good.passed
    assert "1 of 1 goals met; ready in 4.5 s" in good.figure
    slow = fast_2.judged(made(lines=[{**made()["lines"][0], "value": 3.0, "ratio": 0.7, "met": False}]))
    assert not slow.passed
    assert "decode a 3 instead of 1.5; slower than vLLM: decode a" in slow.figure
    assert slow.correct
    lost = fast_2.judged(made(needles=[{"lost": True}]))
    assert (lost.passed, lost.correct) == (False, False)
    assert not fast_2.judged(made(load={"runs": [{"cold": False, "first_token": 5.5}]})).passed
    assert not fast_2.judged(made(needles=[])).passed


def test_a_record_of_other_code_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_record, "PATH", tmp_path / "gpu.json")
    with pytest.raises(NotRun, match="no record"):
        gpu_record.recorded()
    gpu_record.PATH.write_text(json.dumps(made()))
    assert gpu_record.recorded()["card"] == "X"
    gpu_record.PATH.write_text(json.dumps(made(code="0")))
    with pytest.raises(NotRun, match="other code"):
        fast_2.measure(0)


def test_a_record_is_of_all_code_that_decides() -> None:
    found = {path.relative_to(gpu_record.ROOT).as_posix() for path in gpu_record.sources()}
    assert found >= {
        "models/edgewise/models/decoder/streaming.py",
        "models/edgewise/models/decoder/cuda/tuning.py",
        "appliance/edgewise/engine/kernel_plan.py",
        "appliance/edgewise/engine/scheduler.py",
        "appliance/edgewise/engine/devices/runner.py",
        "kernels/edgewise/kernels/tuned.py",
        "kernels/edgewise/kernels/triton/plan.py",
        "tests/accept/cuda.py",
        "tests/accept/engine_8.py",
        "tests/accept/fast_2.py",
        "tests/bench/gpu_all.py",
    }


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kv", ["float16", "int8"])
def test_needles_are_found_and_a_loss_is_seen(kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr(gpu_attention, "attention_forms", lambda stored: [AttentionForm(512)])
    (recall,) = gpu_attention.recalls([600], kv, device, torch.float16)
    assert (recall.found, recall.of, recall.lost) == (40, 40, False)
    assert recall.error < 0.03
    true = gpu_attention._attend
    monkeypatch.setattr(gpu_attention, "_attend", lambda *a: true(*a).roll(1, 0))
    (recall,) = gpu_attention.recalls([600], kv, device, torch.float16)
    assert recall.lost
