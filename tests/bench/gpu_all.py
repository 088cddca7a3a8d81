"""All that a card can tell of this engine, in one report: `python -m tests.bench.gpu_all [--out FILE] [--vllm-python PATH]`.

Parts, in this order: the engine's promises, the kernels' logits, needles in long contexts, the tuner for each shape and format,
the table of speeds, mixtures of experts beside it, with defaults and as tuned, the promises again as tuned, where a step's time
goes, the time to load, and vLLM beside ours if an interpreter with it is named. Each is a process with a time limit of its own;
one that fails or takes too long does not keep the others. The report is written after every part; started again, parts that are
in it are left out, those that failed included unless `--failed` is given. It holds for the code that it was made with: of other
code nothing is kept.

Needs torch, triton and a card; nothing of the services, and for grammars, which nothing here asks for, something stands in:
`PYTHONPATH=.:appliance:edge:cloud:kernels:models python -m tests.bench.gpu_all`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.accept.gpu_record import code_digest
from tests.bench.gpu_lines import LINES, MIXTURES

_STAND_INS = Path(__file__).parent / "stand_ins"
_TAIL = 6000  # characters of a part's output that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process of its own.

    Attributes:
        command: Arguments of this interpreter. "{out}" is the file that the part may write JSON to.
        limit_s: Seconds that it may take.
        environment: Variables besides those that are set.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    environment: tuple[tuple[str, str], ...] = ()


def parts(tuned: Path, vllm_python: str | None, rounds: int) -> Iterator[Part]:
    """What a whole report consists of; records of the tuner lie in `tuned`."""
    yield Part(name="promises", command=("-m", "tests.accept.engine_8", "--count", "3", "--json"), limit_s=1200)
    yield Part(name="needles", command=("-m", "tests.bench.gpu_attention", "--json", "{out}"), limit_s=300)
    for shape in ("llama-1b", "llama-8b", "qwen3-moe-11b", "mixtral-12b"):
        yield Part(name=f"logits {shape}", command=("-m", "tests.bench.gpu_check", shape), limit_s=240)
    for name, lines in _groups():
        yield _bench(f"default {name}", lines, limit_s=300)
    for name, lines in _groups():
        yield _bench(f"tune {name}", lines, "--tuned", str(tuned), "--repeat", "0", limit_s=1500)
        yield _bench(f"tuned {name}", lines, "--tuned", str(tuned), "--profile", limit_s=420)
    promises = ("-m", "tests.accept.engine_8", "--count", "1", "--json")
    yield Part(
        name="promises as tuned", command=promises, limit_s=1800, environment=(("EDGEWISE_TUNED_KERNELS", str(tuned)),)
    )
    yield Part(name="load", command=("-m", "tests.bench.gpu_load", "--json", "{out}"), limit_s=420)
    if vllm_python is not None:
        side = ("-m", "tests.bench.gpu_side_by_side", "--python", vllm_python, "--tuned", str(tuned))
        yield Part(name="beside vllm", command=(*side, "--rounds", str(rounds), "--out", "{out}"), limit_s=5400)


def _groups() -> Iterator[tuple[str, list[str]]]:
    """Names of lines that share an engine, the smallest models first; and a name for all of them."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for line in (*LINES, *MIXTURES):
        found.setdefault((line.shape, line.kv, line.weights), []).append(line.name)
    for (shape, kv, weights), names in found.items():
        yield (
            " ".join([shape, *(["kv", kv] if kv != "bfloat16" else []), *([weights] if weights != "none" else [])]),
            names,
        )


def _bench(name: str, lines: Sequence[str], *flags: str, limit_s: float) -> Part:
    command = ("-m", "tests.bench.gpu", "--no-check", "--json", "{out}", *flags, "--lines", *lines)
    return Part(name=name, command=command, limit_s=limit_s)


def run_part(part: Part, folder: Path) -> dict[str, Any]:
    """What a part said: how it ended, its last words, and its JSON."""
    out = folder / f"{part.name.replace(' ', '-')}.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, *(str(out) if word == "{out}" else word for word in part.command)]
    began = time.monotonic()
    log = folder / f"{part.name.replace(' ', '-')}.log"
    with log.open("w", encoding="utf-8") as words:
        environment = {**os.environ, **_paths(), **dict(part.environment)}
        process = subprocess.Popen(
            command, stdout=words, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
        try:
            code: int | None = process.wait(timeout=part.limit_s)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, 9)  # its own session: what it started goes with it
            process.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    return {
        "ended": "in time"
        if code == 0
        else f"after {part.limit_s:.0f} s by the limit"
        if code is None
        else f"code {code}",
        "ok": code == 0,
        "seconds": round(time.monotonic() - began, 1),
        "output": text[-_TAIL:],
        "result": _json_of(out, text),
    }


def _paths() -> dict[str, str]:
    """Where a package that the engine imports is missing, the path of what stands in for it."""
    if importlib.util.find_spec("llguidance") is not None:
        return {}
    return {"PYTHONPATH": os.pathsep.join((str(_STAND_INS), os.environ.get("PYTHONPATH", "")))}


def _json_of(out: Path, text: str) -> Any:
    """The JSON that a part wrote, or printed as its last line; None if it did neither."""
    last = text.strip().rpartition("\n")[2]
    for source in (out.read_text(encoding="utf-8") if out.exists() else "", last if last.startswith("{") else ""):
        try:
            return json.loads(source)
        except ValueError:
            continue
    return None


def begin(out: Path, digest: str) -> dict[str, Any]:
    """The report so far, if it is of this code; else an empty one."""
    if out.exists():
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        if found.get("code") == digest:
            return found
    return {"code": digest, "parts": {}}


def go(
    todo: Sequence[Part],
    out: Path,
    *,
    failed_again: bool,
    machine: Mapping[str, Any],
    budget_s: float = math.inf,
) -> dict[str, Any]:
    """Run what is missing, and write the report after each part. After `budget_s` seconds it ends; what it cut then is not in the
    report, so it is begun again the next time."""
    deadline = time.monotonic() + budget_s
    report = begin(out, code_digest())
    report["machine"] = dict(machine)
    folder = out.parent / f"{out.stem}-parts"
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(todo, 1):
        known = report["parts"].get(part.name)
        if known is not None and (known["ok"] or not failed_again):
            print(f"[{number}/{len(todo)}] {part.name}: in the report already, {known['ended']}", flush=True)
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            print(f"[{number}/{len(todo)}] {part.name}: no time is left; start again to go on", flush=True)
            break
        print(f"[{number}/{len(todo)}] {part.name} ...", flush=True)
        told = run_part(replace(part, limit_s=min(part.limit_s, left)), folder)
        if not told["ok"] and time.monotonic() >= deadline:
            print(f"    cut after {told['seconds']} s", flush=True)
            break
        report["parts"][part.name] = told
        report["time"] = time.strftime("%FT%TZ", time.gmtime())
        fresh = out.with_suffix(".part")
        fresh.write_text(json.dumps(report, indent=1), encoding="utf-8")
        fresh.replace(out)
        print(f"    {told['ended']}, {told['seconds']} s", flush=True)
        for line in told["output"].strip().splitlines()[-6:]:
            print(f"    | {line[:160]}", flush=True)
    return report


def machine() -> dict[str, Any]:
    import torch
    import triton

    if not torch.cuda.is_available():
        raise SystemExit("there is no usable CUDA device")
    return {
        "card": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "stands_in": ["llguidance"] if _paths() else [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.gpu_all", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu-all.json"))
    parser.add_argument("--tuned", type=Path, help="records of the tuner; beside the report if left out")
    parser.add_argument("--vllm-python", help="interpreter with vllm 0.23")
    parser.add_argument("--rounds", type=int, default=2, help="of ours and vLLM")
    parser.add_argument("--only", nargs="*", default=[], help="parts whose names contain one of these")
    parser.add_argument("--failed", action="store_true", help="run parts again that failed")
    parser.add_argument(
        "--budget", type=float, default=math.inf, metavar="SECONDS", help="end after so long; go on later"
    )
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tuned = args.tuned or args.out.parent / f"{args.out.stem}-tuned"
    todo = [
        part
        for part in parts(tuned.resolve(), args.vllm_python, args.rounds)
        if not args.only or any(word in part.name for word in args.only)
    ]
    report = go(todo, args.out, failed_again=args.failed, machine=machine(), budget_s=args.budget)
    bad = [name for name, told in report["parts"].items() if not told["ok"]]
    print(f"{args.out}: {len(report['parts'])} parts, failed: {', '.join(bad) or 'none'}")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
