"""`make bench`: our engine, llama.cpp and transformers on this machine's processor, side by side in one run.

Same weights at the same bits, same prompts (token ids), same threads, greedy answers of equal length, each engine in a process of
its own without HTTP; ours also through its REST API, with the same file and a client that costs little (`lean_client`). Figures
are measured one after the other, in rounds: every side in turn, the order of sides turns from round to round, and a ratio is the
median of the ratios within a round; above 1 ours is faster. A peer whose best of two rounds is less than half of the fastest
one's is not asked for that figure again: the table stars it.
`--model 1b` measures one stream of a model of a billion random weights. Writes build/bench-cpu.json.

What a figure is: prefill, the prompt's tokens by the time to the first token of the answer; decode, tokens by the time between
the first and the last, after a prompt of so many tokens, which is the same in all rounds, so that caches have it; of 8 streams
the sum of theirs, which begin together. A peer that is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import Progress

from edgewise.bench.work import make_text
from edgewise.cli.output import print_table
from edgewise.models.tokenizer.load import load_tokenizer
from tests.bench.cpu_shown import rows_of
from tests.bench.cpu_sides import KV_MIB, QUANTIZE, STREAMS, Side, missing, starters
from tests.bench.peers import machine, spread
from tests.e2e.service import starter_model

PYTHON = "LLAMACPP_PYTHON"
"""Environment variable: the interpreter that has xllamacpp."""
HOPELESS = 0.5
"""Share of the fastest peer's speed below which one is not asked again."""
SURE = 2
"""Rounds after which that is decided."""
Found = Mapping[str, Mapping[str, Sequence[float]]]
OUT = Path(__file__).resolve().parents[2] / "build" / "bench-cpu.json"


@dataclass(frozen=True, slots=True)
class Figure:
    """So many prompts of so many tokens at once, answers of so many; tokens a second."""

    kind: Literal["prefill", "decode"]
    streams: int
    prompt: int
    answer: int

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.prompt}"
        return f"decode at {self.prompt}" if self.streams == 1 else f"{self.streams} streams at {self.prompt}"

    @property
    def prompt_tokens(self) -> int:
        """Of each prompt. Several have one more token than whole pages of a cache, which is then all that is left to compute: so
        their answers begin together and keep each other company, instead of waiting for the ends of each other's prompts."""
        return self.prompt + (self.streams > 1)

    def value(self, side: Side, prompts: Sequence[list[int]]) -> float:
        """Measures it once."""
        if self.streams > 1:
            side.generate(prompts, 1)  # into the cache
        spans = side.generate(prompts, self.answer)
        if self.kind == "prefill":
            return self.prompt / spans[0][0]
        return sum((self.answer - 1) / (last - first) for first, last in spans)


FIGURES = (
    Figure("prefill", 1, 128, 1),
    Figure("prefill", 1, 512, 1),
    Figure("prefill", 1, 2048, 1),
    Figure("decode", 1, 128, 64),
    Figure("decode", 1, 2048, 48),
    Figure("decode", STREAMS, 128, 48),
    Figure("decode", STREAMS, 2048, 32),
)
BILLION = (Figure("prefill", 1, 512, 1), Figure("decode", 1, 128, 32))
QUICK = (Figure("prefill", 1, 64, 1), Figure("decode", 1, 32, 8), Figure("decode", 2, 32, 8))


def measure(
    sides: Sequence[Side],
    figures: Sequence[Figure],
    rounds: int,
    prompts_of: Callable[[Figure], list[list[int]]],
    tick: Callable[[str, int], None],
    told: Callable[[str, Mapping[str, Sequence[float]]], None],
) -> Found:
    """Figure -> side -> its values, one a round, after a warm-up that is not counted.

    Args:
        tick: Called before each work with its name and the pieces of work that it stands for: itself, and those left out.
        told: Called with a figure's values when all are there.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for side in sides:
        tick(f"{side.name}: warming up", 1)
        side.generate(prompts_of(figures[0]), 2)
    for figure in figures:
        values = found[figure.name] = {side.name: [] for side in sides}
        asked, prompts = list(sides), prompts_of(figure)
        for number in range(rounds):
            if number and figure.kind == "prefill":
                prompts = prompts_of(figure)  # one that no cache has
            shift = number % len(asked)
            for side in [*asked[shift:], *asked[:shift]]:
                tick(f"{side.name}: {figure.name}", 1)
                values[side.name].append(figure.value(side, prompts))
            if number == SURE - 1:
                asked = worth_asking(sides, values)
                tick(figure.name, (len(sides) - len(asked)) * (rounds - SURE))
        told(figure.name, values)
    return found


def worth_asking(sides: Sequence[Side], values: Mapping[str, Sequence[float]]) -> list[Side]:
    """Our own sides, and the peers that may be the fastest of their bits; floats, of which there is one peer, by any peer.

    A peer's best round counts: one that the machine disturbed says nothing of it.
    """
    fastest: dict[int, float] = {}
    for side in sides:
        if not mine(side):
            fastest[side.bits] = max(fastest.get(side.bits, 0.0), max(values[side.name]))
    for bits in fastest.keys() - QUANTIZE.keys():
        fastest[bits] = max(fastest.values())
    return [side for side in sides if mine(side) or max(values[side.name]) >= HOPELESS * fastest[side.bits]]


def mine(side: Side) -> bool:
    return side.name.startswith("edgewise")


def summarize(sides: Sequence[Side], found: Found) -> list[dict[str, Any]]:
    """Medians and ranges, and the ratio of our engine to each peer of the same bits, and to our own REST API.

    A peer that was not asked in all rounds is compared in those in which it was.
    """
    rows = []
    for figure, values in found.items():
        ratios = {}
        for side in sides:
            ours = next((one.name for one in sides if one.name == _ours(side)), None)
            if ours is not None and ours != side.name:
                pairs = zip(values[ours], values[side.name], strict=False)
                ratios[side.name] = spread([mine / theirs for mine, theirs in pairs])
        times = {name: len(them) for name, them in values.items()}
        spreads = {name: spread(them) for name, them in values.items()}
        rows.append({"figure": figure, "values": spreads, "times": times, "ours_to": ratios})
    return rows


def _ours(side: Side) -> str:
    """The side of ours that one is compared with: of the same bits; where it has floats, that of four."""
    return f"edgewise {QUANTIZE.get(side.bits, QUANTIZE[4])}"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Of the command line by default."""
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=tuple(KV_MIB), default="starter")
    parser.add_argument("--bits", type=int, choices=(4, 8), action="append", help="of weights; both by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=machine(1)["cores"])
    parser.add_argument("--only", action="append", help="sides whose name has this in it; may be given several times")
    parser.add_argument("--figure", action="append", help="figures whose name has this in it; likewise")
    parser.add_argument("--quick", action="store_true", help="one round of short work: does it run at all?")
    python = os.environ.get(PYTHON, sys.executable)
    parser.add_argument("--llamacpp-python", default=python, help=f"interpreter that has xllamacpp; default: {PYTHON}")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    args.bits = args.bits or [4, 8]
    return args


def figures_of(args: argparse.Namespace) -> list[Figure]:
    figures = QUICK if args.quick else BILLION if args.model == "1b" else FIGURES
    return [it for it in figures if not args.figure or any(one in it.name for one in args.figure)]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The whole measurement."""
    figures, rounds, absent = figures_of(args), 1 if args.quick else args.rounds, missing(args.llamacpp_python)
    for told in absent.values():
        print(f"bench: left out: {told}", file=sys.stderr)
    facts = machine(args.threads)
    tokenizer, rng = load_tokenizer(starter_model()), random.Random(11)

    def prompts_of(figure: Figure) -> list[list[int]]:
        texts = [make_text(figure.prompt_tokens + 8, rng) for _ in range(figure.streams)]
        return [list(tokenizer.encode(text))[: figure.prompt_tokens] for text in texts]

    with ExitStack() as stack, Progress(console=Console(file=sys.stderr)) as bars:
        wanted = starters(args, absent)
        task = bars.add_task("starting", total=len(wanted) * (1 + rounds * len(figures)))
        sides = [stack.enter_context(start()) for start in wanted.values()]

        def tick(what: str, work: int) -> None:
            bars.update(task, advance=work, description=what)

        def show(figure: str, values: Mapping[str, Sequence[float]]) -> None:
            bars.console.print(f"{figure}: {', '.join(f'{name} {max(them):.4g}' for name, them in values.items())}")

        found = measure(sides, figures, rounds, prompts_of, tick, show)
        told_of = {side.name: side.facts() for side in sides}
    return {
        "time": time.strftime("%FT%TZ", time.gmtime()),
        **facts,
        "model": args.model,
        "rounds": rounds,
        "left_out": list(absent.values()),
        "sides": told_of,
        "figures": summarize(sides, found),
    }


def main() -> None:
    args = parse_arguments()
    report = run(args)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(report, indent=2) + "\n")
    if args.json:
        print(json.dumps(report, indent=2))
        return
    print_table(*rows_of(report))
    print(f"bench: written to build/{OUT.name}")


if __name__ == "__main__":
    main()
