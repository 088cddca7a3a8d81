"""Inter-token latency of 8 running streams, alone and while a long prompt is computed beside them.

    python -m tests.bench.itl [--context 32768] [--home DIR --model NAME] [--device cpu] [--threads N] [--json]

Without `--home` it makes a tiny random model with that context. Streams are interactive; so is the prompt, so that they are
protected from it. Every gap between two tokens of a stream counts, as the stream's reader sees it. Prints p50, p95 and p99 of
both phases, the ratio of the p95, and how long the prompt took.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.models.files import ModelFiles
from edgewise.models.store import Store
from edgewise.models.tiny import local_files, make_tiny_model

STREAMS = 8
STREAM_PROMPT = 64
WARM_STEPS = 64


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between tokens of a phase."""

    alone: list[float]
    beside: list[float]
    prompt_s: float

    def report(self) -> dict[str, float]:
        found = {
            f"{phase}_p{share}_ms": round(1e3 * at(gaps, share / 100), 3)
            for phase, gaps in (("alone", self.alone), ("beside", self.beside))
            for share in (50, 95, 99)
        }
        ratio = at(self.beside, 0.95) / at(self.alone, 0.95)
        return found | {"p95_ratio": round(ratio, 3), "prompt_s": round(self.prompt_s, 2), "gaps": len(self.beside)}


def at(gaps: list[float], share: float) -> float:
    return sorted(gaps)[min(len(gaps) - 1, int(share * len(gaps)))]


def request(name: str, vocab: int, prompt: int, max_tokens: int) -> GenerateRequest:
    rng = random.Random(name)
    return GenerateRequest(
        id=name,
        prompt=tuple(rng.randrange(vocab) for _ in range(prompt)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        key=name,
    )


def measure(core: Engine, prompt_tokens: int) -> Gaps:
    """Beside the prompt until its first token; then the same streams again for as many steps without it.

    Both phases decode over the same contexts, since a step's time grows with them.
    """
    vocab = core.info.vocab_size
    core.add(request("warm", vocab, min(2048, prompt_tokens // 2), 1))
    while core.has_work:
        core.step()
    last = _start_streams(core)
    core.add(request("long", vocab, prompt_tokens, 1))
    began = time.perf_counter()
    beside: list[float] = []
    while "long" not in last:
        _step(core, last, beside)
    prompt_s = time.perf_counter() - began
    last = _start_streams(core)
    alone: list[float] = []
    while len(alone) < len(beside):
        _step(core, last, alone)
    return Gaps(alone, beside, prompt_s)


def _start_streams(core: Engine) -> dict[str, float]:
    """The streams, anew and `WARM_STEPS` tokens long; returns when each had its last token."""
    for index in range(STREAMS):
        core.cancel(f"stream{index}")
    while core.has_work:
        core.step()
    for index in range(STREAMS):
        core.add(request(f"stream{index}", core.info.vocab_size, STREAM_PROMPT, core.info.max_context - STREAM_PROMPT))
    last: dict[str, float] = {}
    while len(last) < STREAMS:
        _step(core, last, [])
    for _ in range(WARM_STEPS):
        _step(core, last, [])
    return last


def _step(core: Engine, last: dict[str, float], gaps: list[float]) -> None:
    chunks = core.step()
    now = time.perf_counter()
    for chunk in chunks:
        if chunk.tokens and chunk.request_id in last:
            gaps.append(now - last[chunk.request_id])
        last[chunk.request_id] = now


def engine(files: ModelFiles, args: argparse.Namespace) -> Engine:
    config = EngineConfig(model=files, device=args.device, threads=args.threads, max_context=args.context)
    return build(config, lambda phase, done: None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.itl", description=__doc__)
    parser.add_argument("--context", type=int, default=32768, help="tokens of context; the prompt takes almost all")
    parser.add_argument(
        "--home", type=Path, help="state directory whose model is measured instead of a tiny random one"
    )
    parser.add_argument("--model", default="starter", help="name of that model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--hidden", type=int, default=64, help="size of the tiny model")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.home is not None:
            files = Store(args.home / "models").resolve(args.model)
        else:
            shape = {"context": args.context, "hidden": args.hidden, "layers": args.layers}
            files = local_files(make_tiny_model(Path(folder), **shape))
        core = engine(files, args)
        report = {"model": files.name, **measure(core, min(args.context, core.info.max_context) - 32).report()}
        core.close()
    print(json.dumps(report) if args.json else "\n".join(f"{name:>16} {value}" for name, value in report.items()))


if __name__ == "__main__":
    main()
