"""On a CUDA card: ours beside vLLM 0.23 in one run, the goals of the table, and needles in long contexts with 8-bit pages.

`EDGEWISE_VLLM_PYTHON` names an interpreter that has vllm; `EDGEWISE_TUNED_KERNELS` a folder of the tuner's records (else they are
made beside the report, which takes minutes). `--record` as the only argument runs it and keeps what was found in
docs/figures/gpu-vllm.json, by which the line is judged on machines without a card, for as long as the code is the same.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.accept.gpu_record import PATH, code_digest, recorded
from tests.accept.line import Line, NotRun, Verdict, main, progress

READY_S = 5.0
"""From the start of a process to the first token, 8b on disk, warm."""


def judged(record: Mapping[str, Any]) -> Verdict:
    """What a record says, by the bars."""
    lines: Sequence[Mapping[str, Any]] = record["lines"]
    goals = [line for line in lines if line["goal"] is not None]
    missed = [line for line in goals if not line["met"]]
    lost = [each for each in record["needles"] if each["lost"]]
    ready = min((run["first_token"] for run in record["load"]["runs"] if not run["cold"]), default=float("inf"))
    slow = [line for line in lines if line["ratio"] is not None and line["ratio"] < 1.0]
    parts = [f"{len(goals) - len(missed)} of {len(goals)} goals met"]
    parts += [
        f"{line['line']} {line['value']:g} instead of {line['goal']:g}" for line in missed if line["value"] is not None
    ]
    parts += [f"{line['line']} not measured" for line in missed if line["value"] is None]
    parts += [f"slower than vLLM: {', '.join(line['line'] for line in slow)}"] if slow else []
    parts += [f"ready in {ready:.1f} s"]
    parts += [f"{len(record['needles']) - len(lost)} of {len(record['needles'])} needle rows without loss"]
    passed = not missed and not lost and ready <= READY_S and bool(goals) and bool(record["needles"])
    figure = "; ".join(parts) + f" ({record['card']}, {record['time'][:10]})"
    return Verdict(figure=figure, passed=passed, correct=not lost, details=record)


def on_card(python: str, rounds: int) -> dict[str, Any]:
    """A new record."""
    import torch

    from tests.bench.gpu_attention import CONTEXTS, FORMATS, recalls
    from tests.bench.gpu_load import measure as load
    from tests.bench.gpu_side_by_side import measure as beside

    tuned = Path(os.environ.get("EDGEWISE_TUNED_KERNELS", "build/tuned-kernels")).resolve()
    needles = []
    with torch.inference_mode():
        for kv in FORMATS if torch.cuda.get_device_capability() >= (8, 9) else ("bfloat16", "int8"):
            progress(f"needles, {kv}")
            found = list(recalls(CONTEXTS, kv, torch.device("cuda")))
            needles += [{**asdict(each), "lost": each.lost} for each in found]
    progress("time to load")
    loaded = load("llama-8b", 2)
    return {
        "code": code_digest(),
        "time": time.strftime("%FT%TZ", time.gmtime()),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rounds": rounds,
        "lines": beside(python, tuned, rounds),
        "needles": needles,
        "load": loaded,
    }


def measure(count: int) -> Verdict:
    """`count`: rounds of ours and vLLM; 0 judges the kept record alone."""
    import torch

    python = os.environ.get("EDGEWISE_VLLM_PYTHON")
    if count == 0 or not torch.cuda.is_available():
        return judged(recorded())
    if python is None:
        raise NotRun("EDGEWISE_VLLM_PYTHON names no interpreter with vllm")
    return judged(on_card(python, count))


def record(rounds: int) -> None:
    """Measure and keep."""
    python = os.environ.get("EDGEWISE_VLLM_PYTHON")
    if python is None:
        raise SystemExit("EDGEWISE_VLLM_PYTHON names no interpreter with vllm")
    PATH.write_text(json.dumps(on_card(python, rounds), indent=1) + "\n", encoding="utf-8")
    print(judged(recorded()).figure)


LINE = Line(
    number=2,
    title="On a CUDA card: ours beside vLLM in one run, and no needle lost with 8-bit pages",
    bar="every goal of the table met; first token of 8b within 5 s; no needle lost",
    count=2,
    small=0,
    measure=measure,
)

if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record(LINE.count)
    else:
        main(LINE, "tests.accept.fast_2")
