"""How `edgewise bench` shows what it does and what came out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edgewise.bench.load import Run
from edgewise.bench.serve import Plan
from edgewise.cli.output import print_table, say

_TIMES: Final = (
    ("time to first token", "time_to_first_token_s"),
    ("between chunks", "between_chunks_s"),
    ("per output token", "time_per_output_token_s"),
    ("whole answer", "latency_s"),
)


@contextmanager
def progress(run: Run, plan: Plan, *, show: bool) -> Iterator[None]:
    """A bar on a terminal, a line per tenth elsewhere, nothing where not to show."""
    total = plan.limits.requests
    if not show:
        yield
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=sys.stderr)) as bars:
            task = bars.add_task("warming up", total=total)
            run.notify = lambda now: bars.update(task, completed=len(now.samples), description=_state(now))
            yield
    else:
        run.notify = _Lines(total)
        yield


def _state(run: Run) -> str:
    failed = sum(sample.error is not None for sample in run.samples)
    return f"{run.started - len(run.samples)} in flight" + (f", {failed} failed" if failed else "")


class _Lines:
    """A line when another tenth of the requests has ended."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._told = 0

    def __call__(self, run: Run) -> None:
        tenth = 10 * len(run.samples) // self._total if self._total else len(run.samples) // 100
        if tenth > self._told:
            self._told = tenth
            say(f"{len(run.samples)} of {self._total or 'many'} requests ended, {_state(run)}")


def print_report(result: Mapping[str, Any]) -> None:
    """The tables of a result."""
    rows = [(title, *_milliseconds(result[name])) for title, name in _TIMES]
    print_table(("milliseconds", "mean", "p50", "p95", "p99", "max"), rows)
    requests, tokens, rates = result["requests"], result["tokens"], result["per_second"]
    loop = (
        f"open loop, {result['rate']} a second" if result["loop"] == "open" else f"closed loop, {result['concurrency']}"
    )
    print_table(
        ("figure", "value"),
        [
            ("model", result["model"]),
            ("load", loop),
            ("requests", f"{requests['good']} good, {requests['failed']} failed in {result['wall_s']:.1f} s"),
            ("requests a second", rates["requests"]),
            ("answer tokens a second", _known(rates["answer_tokens"])),
            ("prompt tokens a second", _known(rates["prompt_tokens"])),
            ("prompt tokens of a request", _mean(tokens["prompt_per_request"])),
            ("answer tokens of a request", _mean(tokens["answer_per_request"])),
            ("answer tokens in a chunk", _known(tokens["per_piece"])),
        ],
    )
    for error, count in requests["errors"].items():
        say(f"{count} failed: {error}")
    if (cached := tokens["cached_prompt"] or 0) > (tokens["prompt"] or 0) / 10:  # more than a template's beginning
        say(
            f"{cached} of {tokens['prompt']} prompt tokens were in the server's cache: another --seed makes other prompts."
        )
    if (late := result["late_s"]) and late["p99"] > 0.01:
        say(f"This program sent requests up to {late['max']:.3f} s late: the figures count from when they were due.")


def _milliseconds(spread: Mapping[str, float] | None) -> tuple[str, ...]:
    names = ("mean", "p50", "p95", "p99", "max")
    return tuple("-" if spread is None else f"{1000 * spread[name]:.1f}" for name in names)


def _mean(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['mean']:.1f} (to {spread['max']:.0f})"


def _known(value: float | None) -> str:
    return "not told by the server" if value is None else str(value)
