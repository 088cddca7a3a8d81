"""What prompt lookup gains: tokens a step and CPU time a token, with and without, on the starter model.

    python -m tests.bench.speculation [--tokens 160] [--rounds 3] [--streams 1 4] [--mode auto] [--json]

Two works: a text to be written again with one word changed, which quotes its prompt, and a story, which quotes nothing. Engines
with and without take turns on one thread in this process; CPU times, the median of the rounds, so that other programs matter
little. Each answer is compared: it must be the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass

from edgewise.cli.output import print_table
from edgewise.core.log import configure_logging
from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig, SpeculationName
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.models.tokenizer import load_tokenizer
from tests.e2e.service import starter_model

_LETTER = (
    "Dear Mr. Harris, thank you for your letter of the third of March. The pump was installed in the cellar on Monday and "
    "has been running since without interruption. We measured a flow of forty litres per minute at the outlet. Please send "
    "the invoice for the valves and the two pipes to our office in the harbour, and let us know when the technician can "
    "come to check the seals. Kind regards, Anna Lindqvist"
)
WORKS = {
    "repetitive": f"Repeat this letter word for word, but write Tuesday instead of Monday:\n\n{_LETTER}",
    "plain": "Tell a short story about a fisherman who finds an old compass.",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One round of one engine."""

    answers: tuple[tuple[int, ...], ...]
    steps: int
    cpu_s: float
    proposed: int
    accepted: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speculation")
    parser.add_argument("--tokens", type=int, default=160, help="of each answer at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--mode", choices=["auto", "lookup"], default="auto")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    configure_logging(level="warning", format="console")
    rows = measure(args.tokens, args.rounds, args.streams, args.mode)
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])


def measure(tokens: int, rounds: int, streams: list[int], mode: SpeculationName) -> list[dict[str, object]]:
    """One row for each work and number of streams."""
    files = starter_model()
    tokenizer = load_tokenizer(files)
    engines = {name: _engine(name) for name in ("off", mode)}
    found = []
    for work, text in WORKS.items():
        turn = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        prompt = tuple(tokenizer.encode(turn))
        for count in streams:
            runs: dict[str, list[Run]] = {name: [] for name in engines}
            for _ in range(rounds):
                for name, core in engines.items():
                    runs[name].append(run(core, prompt, count, tokens, tuple(sorted(tokenizer.eos_ids))))
            found.append(_row(work, count, runs["off"], runs[mode]))
    return found


def _engine(mode: SpeculationName) -> Engine:
    config = EngineConfig(
        model=starter_model(), device="cpu", threads=1, kv_memory_bytes=64 << 20, max_context=2048, speculation=mode
    )
    return build(config, lambda phase, done: None)


def run(core: Engine, prompt: tuple[int, ...], streams: int, tokens: int, ends: tuple[int, ...]) -> Run:
    """Have `streams` answers written at once, with temperature 0 and 0.7 by turns; what is counted begins with the first step
    in which all are being written."""
    answers: dict[str, list[int]] = {str(number): [] for number in range(streams)}
    for number, name in enumerate(answers):
        sampling = SamplingParams(max_tokens=tokens, temperature=0.7 * (number % 2), seed=number, stop_token_ids=ends)
        core.add(GenerateRequest(id=name, prompt=prompt, sampling=sampling))
    while not all(answers.values()):
        _step(core, answers)
    before, began = core.stats(), time.thread_time()
    while core.has_work:
        _step(core, answers)
    spent, after = time.thread_time() - began, core.stats()
    return Run(
        answers=tuple(tuple(answer) for answer in answers.values()),
        steps=after.steps - before.steps,
        cpu_s=spent / max(1, after.generated_tokens - before.generated_tokens),
        proposed=after.proposed_tokens - before.proposed_tokens,
        accepted=after.accepted_tokens - before.accepted_tokens,
    )


def _step(core: Engine, answers: dict[str, list[int]]) -> None:
    for chunk in core.step():
        answers[chunk.request_id] += chunk.tokens


def _row(work: str, streams: int, without: list[Run], with_: list[Run]) -> dict[str, object]:
    expected = without[0].answers
    same = all(one.answers == expected for one in (*without, *with_))
    tokens = sum(len(answer) for answer in expected)
    cpu = [statistics.median(one.cpu_s for one in runs) for runs in (without, with_)]
    proposed, accepted = sum(one.proposed for one in with_), sum(one.accepted for one in with_)
    return {
        "work": work,
        "streams": streams,
        "tokens": tokens,
        "same answers": "yes" if same else "NO",
        "steps without": statistics.median(one.steps for one in without),
        "steps with": statistics.median(one.steps for one in with_),
        "accepted": f"{accepted / proposed:.0%} of {proposed // len(with_)}" if proposed else "none proposed",
        "CPU ms a token without": round(1e3 * cpu[0], 2),
        "with": round(1e3 * cpu[1], 2),
        "ratio": round(cpu[0] / cpu[1], 2),
    }


if __name__ == "__main__":
    main()
