"""`make bench PEERS=1`: the same work on Edgewise, llama.cpp's server and transformers, side by side in one session.

Same weights (the starter's file; transformers gets it dequantized), same prompts (token ids), same threads, greedy answers of the
same length. Rounds are interleaved: in each, every figure is measured on every side one after the other, and the order of sides
changes from round to round, so that what else the machine does falls on all. Ratios are medians over the rounds of the ratio
within a round; above 1 Edgewise is faster. Writes build/bench-peers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from edgewise.bench.work import make_text
from edgewise.cli.output import print_table
from edgewise.models.tokenizer.load import load_tokenizer
from tests.bench.peer_sides import NotInstalled, Side, edgewise_side, llamacpp_side, transformers_side
from tests.e2e.service import starter_model

OUT = Path(__file__).resolve().parents[2] / "build" / "bench-peers.json"
STREAMS = 8
CONTEXT = 2048 + 256
Tokenize = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing to measure: so many prompts of so many tokens at once, answers of so many tokens.

    `kind` is the figure taken: "prefill" and "decode" are tokens a second (more is better), "first" is seconds (less is better).
    """

    name: str
    kind: str
    streams: int
    prompt: int
    answer: int

    def value(self, side: Side, prompts: Sequence[list[int]]) -> float:
        times = side.generate(prompts, self.answer)
        if self.kind == "first":
            return times.first_s
        if self.kind == "prefill":
            return self.prompt / times.first_s
        if self.streams > 1:  # by the wall clock, prompts included, on every side alike
            return self.streams * self.answer / times.total_s
        return (self.answer - 1) / (times.total_s - times.first_s)


FIGURES = (
    Figure("time to first token, 64-token prompt, s", "first", 1, 64, 2),
    Figure("decode, one stream, tokens/s", "decode", 1, 64, 128),
    Figure(f"{STREAMS} streams together, tokens/s", "decode", STREAMS, 64, 128),
    Figure("prefill, 512 tokens, tokens/s", "prefill", 1, 512, 2),
    Figure("prefill, 2048 tokens, tokens/s", "prefill", 1, 2048, 2),
)
QUICK = (
    Figure("time to first token, 16-token prompt, s", "first", 1, 16, 2),
    Figure("decode, one stream, tokens/s", "decode", 1, 16, 8),
    Figure("2 streams together, tokens/s", "decode", 2, 16, 8),
    Figure("prefill, 64 tokens, tokens/s", "prefill", 1, 64, 2),
)


def make_prompts(figure: Figure, rng: random.Random, tokenize: Tokenize) -> list[list[int]]:
    """Exactly so many tokens of made-up text each; no two share a beginning, so no prefix cache helps anybody."""
    return [list(tokenize(make_text(figure.prompt + 8, rng)))[: figure.prompt] for _ in range(figure.streams)]


def ratio(figure: Figure, ours: float, theirs: float) -> float:
    """Above 1 where ours is faster."""
    return theirs / ours if figure.kind == "first" else ours / theirs


def measure(
    sides: Sequence[Side], figures: Sequence[Figure], rounds: int, tokenize: Tokenize, tick: Callable[[str], None]
) -> dict[str, dict[str, list[float]]]:
    """Figure -> side -> its values, one a round, after a warm-up that is not counted."""
    rng = random.Random(11)
    found: dict[str, dict[str, list[float]]] = {it.name: {side.name: [] for side in sides} for it in figures}
    for side in sides:
        tick(f"{side.name}: warming up")
        side.generate(make_prompts(figures[-1], rng, tokenize), 2)
    for number in range(rounds):
        shift = number % len(sides)
        for figure in figures:
            prompts = make_prompts(figure, rng, tokenize)
            for side in [*sides[shift:], *sides[:shift]]:
                tick(f"{side.name}: {figure.name}")
                found[figure.name][side.name].append(figure.value(side, prompts))
    return found


def summarize(figures: Sequence[Figure], found: Mapping[str, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """Medians and ranges of every figure, and of its ratio to each peer within a round."""
    rows: list[dict[str, Any]] = []
    for figure in figures:
        values = found[figure.name]
        row: dict[str, Any] = {"figure": figure.name, "values": {name: spread(them) for name, them in values.items()}}
        ours = values["edgewise"]
        row["edgewise_to"] = {
            name: spread([ratio(figure, one, other) for one, other in zip(ours, them, strict=True)])
            for name, them in values.items()
            if name != "edgewise"
        }
        rows.append(row)
    return rows


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range, to four digits."""
    named = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.4g}") for name, value in named.items()}


def machine(threads: int) -> dict[str, Any]:
    """The kind of machine, without its name."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cores = len(os.sched_getaffinity(0))
    load = round(os.getloadavg()[0], 2)
    cpu = found[1] if found else platform.machine()
    return {"cpu": cpu, "cores": cores, "threads": threads, "load_before": load}


def show(report: Mapping[str, Any]) -> None:
    """A table: medians, in brackets the range."""
    sides = list(report["sides"])
    peers = [name for name in sides if name != "edgewise"]
    rows = [
        (row["figure"], *map(_text, [*row["values"].values(), *row["edgewise_to"].values()]))
        for row in report["figures"]
    ]
    print_table(("figure", *sides, *(f"edgewise : {name}" for name in peers)), rows)


def _text(value: Mapping[str, float]) -> str:
    return f"{value['median']:g} [{value['low']:g}-{value['high']:g}]"


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="make bench PEERS=1", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="one round of short work: does it run at all?")
    parser.add_argument("--without", action="append", default=[], choices=("llama.cpp", "transformers"))
    parser.add_argument("--llamacpp-python", default=sys.executable, help="interpreter that has xllamacpp")
    parser.add_argument(
        "--llamacpp-gguf", type=Path, help="another file for llama.cpp, e.g. requantized to Q4_0 or Q8_0"
    )
    parser.add_argument("--transformers-dtype", default="float32", choices=("float32", "bfloat16"))
    return parser.parse_known_args()


def start(args: argparse.Namespace, flags: Sequence[str], stack: ExitStack) -> list[Side]:
    """Starts every side; raises NotInstalled before any, as far as it can be known."""
    (gguf,) = starter_model().paths.values()
    sides: list[Side] = []
    if "llama.cpp" not in args.without:
        other = args.llamacpp_gguf or gguf
        sides.append(stack.enter_context(llamacpp_side(other, args.threads, STREAMS, CONTEXT, args.llamacpp_python)))
    if "transformers" not in args.without:
        sides.append(stack.enter_context(transformers_side(gguf, args.threads, args.transformers_dtype)))
    return [stack.enter_context(edgewise_side(args.threads, STREAMS, flags)), *sides]


def main() -> None:
    args, serve_flags = parse_arguments()
    figures, rounds = (QUICK, 1) if args.quick else (FIGURES, args.rounds)
    facts = machine(args.threads)
    tokenizer = load_tokenizer(starter_model())
    with ExitStack() as stack:
        try:
            sides = start(args, serve_flags, stack)
        except NotInstalled as error:
            sys.exit(f"bench: {error}")
        with Progress(console=Console(file=sys.stderr)) as bars:
            task = bars.add_task("", total=len(sides) * (1 + rounds * len(figures)))
            found = measure(
                sides, figures, rounds, tokenizer.encode, lambda what: bars.update(task, advance=1, description=what)
            )
    versions = {side.name: side.version for side in sides}
    when = time.strftime("%FT%TZ", time.gmtime())
    report = {"time": when, **facts, "rounds": rounds, "sides": versions, "figures": summarize(figures, found)}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(report, indent=2) + "\n")
    show(report)
    print(f"bench: written to build/{OUT.name}")


if __name__ == "__main__":
    main()
