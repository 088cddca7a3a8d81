"""Ours and vLLM on one card, alternately: `python -m tests.bench.gpu_side_by_side --python PATH [--tuned FOLDER] [--rounds N]`.

For each shape and format ours and vLLM take turns, each in a process of its own, on random weights of the same shape and the same
batches; vLLM in the mode that is quicker for the shape (its engine in the caller's process for small models). The figures are
medians over rounds, and a ratio is the median of the rounds' ratios: how many times as fast ours is. Lines for which vLLM has
nothing to set beside (weights in 8 and 4 bits) have no ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.gpu_lines import LINES, Line, lines_of
from tests.bench.gpu_peer_vllm import peer

_ONE_PROCESS = {"llama-1b": True, "llama-3b": False, "llama-8b": False}


@dataclass(slots=True)
class Side:
    """A line's figures, one a round."""

    line: Line
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """As the report has it: `value` and `peer` in milliseconds a step, or of prefill in tokens a second."""
        prefill, goal = self.line.prefill, self.line.goal
        value = statistics.median(self.ours) if self.ours else None
        ratios = [a / b if prefill else b / a for a, b in zip(self.ours, self.theirs, strict=False)]
        met = None
        if value is not None and goal is not None:
            met = value >= goal if prefill else value <= goal
        return {
            "line": self.line.name,
            "value": value,
            "peer": statistics.median(self.theirs) if self.theirs else None,
            "ratio": round(statistics.median(ratios), 3) if ratios else None,
            "goal": goal,
            "met": met,
            "rounds": len(self.ours),
        }


def groups(lines: Sequence[Line]) -> Iterator[tuple[str, str, list[Line]]]:
    """Shape, vLLM's KV format, and the lines that one start of each side measures. int8 pages of ours stand beside fp8 of vLLM's,
    which has no int8."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        found.setdefault((line.shape, "bfloat16" if line.kv == "bfloat16" else "fp8"), []).append(line)
    for (shape, kv), own in found.items():
        yield shape, kv, own


def ours(lines: Sequence[Line], tuned: Path | None) -> dict[str, float]:
    """Our figure of each line."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ours.json"
        command = [sys.executable, "-m", "tests.bench.gpu", "--no-check", "--repeat", "1", "--json", str(out)]
        command += ["--tuned", str(tuned)] if tuned is not None else []
        subprocess.run([*command, "--lines", *(line.name for line in lines)], check=True, stdout=sys.stderr)
        report = json.loads(out.read_text(encoding="utf-8"))
    wanted = {line.name for line in lines}
    return {each["line"]: each["value"] for each in report["lines"] if each["line"] in wanted}


def theirs(lines: Sequence[Line], shape: str, kv: str, python: str) -> dict[str, float]:
    """vLLM's figure of each line that it has one for."""
    found = peer(python, shape, kv, _ONE_PROCESS[shape])
    told: dict[str, float] = {}
    for line in lines:
        figures = found.get(f"{line.batch}x{line.context}")
        if figures is not None and line.weights == "none":
            told[line.name] = figures[1 if line.prefill else 0]
    return told


def measure(python: str, tuned: Path | None, rounds: int, lines: Sequence[Line] = LINES) -> list[dict[str, Any]]:
    """The table of issue 7, section 4."""
    sides = {line.name: Side(line) for line in lines}
    for shape, kv, own in groups(lines):
        for number in range(rounds):
            print(f"  .. {shape} {kv}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            mine = ours(own, tuned)
            other = theirs(own, shape, kv, python)
            for name, value in mine.items():
                sides[name].ours.append(value)
            for name, value in other.items():
                sides[name].theirs.append(value)
    return [side.told() for side in sides.values()]


def show(line: Mapping[str, Any]) -> str:
    unit = "tokens/s" if line["line"].startswith("prefill") else "ms"
    parts = [f"{line['line']:38}"]
    parts += ["not measured" if line["value"] is None else f"ours {line['value']:.3f} {unit}"]
    parts += [f"vllm {line['peer']:.3f} {unit}, ratio {line['ratio']:.2f}"] if line["ratio"] else []
    parts += [f"goal {line['goal']:g} {'met' if line['met'] else 'NOT MET'}"] if line["goal"] else []
    return "  ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.bench.gpu_side_by_side", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--python", required=True, help="interpreter with vllm")
    parser.add_argument("--tuned", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--lines", nargs="*", default=[], help="names, or parts of names; all lines without")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-vllm.json"))
    args = parser.parse_args()
    import torch

    found = measure(args.python, args.tuned, args.rounds, lines_of(args.lines))
    for line in found:
        print(show(line), flush=True)
    report = {
        "time": time.strftime("%FT%TZ", time.gmtime()),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rounds": args.rounds,
        "tuned": args.tuned is not None,
        "lines": found,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
