"""Steps of the engine's runner on a CPU, without scheduler, worker and API: tokens a second, and what Python costs besides.

    python -m tests.bench.native_step MODEL_FOLDER [--kernels native] [--quantize auto] [--threads 2] [--contexts 128 2048]

Each line gives the median of several repetitions: wall clock, processor time of the calling thread (which computes as one of the
pool), and the part of a step that is not spent in the library, on the calling thread's own processor clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgewise.engine.build import Built, build_parts
from edgewise.engine.config import EngineConfig
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence
from edgewise.kernels.paging import PAGE_TOKENS
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files

STEPS = 24


def model_files(folder: Path) -> ModelFiles:
    """A folder with one GGUF file among others, or a Hugging Face folder."""
    files = local_files(folder)
    paths = {name: path for name, path in files.paths.items() if files.format != "gguf" or name.endswith(".gguf")}
    return ModelFiles(name=folder.name, digest=files.digest, format=files.format, paths=paths)


def sequence_of(name: str, tokens: list[int], pages: list[int]) -> Sequence:
    request = GenerateRequest(id=name, prompt=tuple(tokens), sampling=SamplingParams(max_tokens=1, temperature=0.0))
    sequence = Sequence.of(request, arrival=0, now=0.0)
    sequence.pages = pages
    return sequence


class InLibrary:
    """Counts the time that a network's calls take."""

    def __init__(self, network: Any) -> None:
        self.seconds = 0.0
        self._network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def forward(self, *args: Any) -> Any:
        return self._timed(self._network.forward, *args)

    def logits(self, *args: Any) -> Any:
        return self._timed(self._network.logits, *args)

    def _timed(self, call: Callable[..., Any], *args: Any) -> Any:
        began = time.thread_time()
        try:
            return call(*args)
        finally:
            self.seconds += time.thread_time() - began


class Bench:
    """Sequences on pages of their own; every repetition writes the same positions again."""

    def __init__(self, built: Built, batch: int, most: int) -> None:
        self._built = built
        self._network = InLibrary(built.loaded)
        built.runner._network = self._network
        pages = -(-most // PAGE_TOKENS)
        vocab = built.network.vocab_size
        prompts = [[(7 * at + 13 * row) % (vocab - 8) + 4 for at in range(most)] for row in range(batch)]
        tables = [list(range(row * pages, (row + 1) * pages)) for row in range(batch)]
        self._all = [sequence_of(f"s{row}", prompts[row], tables[row]) for row in range(batch)]

    def prefill(self, tokens: int, batch: int = 1, chunk: int = 512) -> None:
        for sequence in self._all[:batch]:
            for start in range(0, tokens, chunk):
                count = min(chunk, tokens - start)
                self._built.runner.run([Work(sequence, start, count, sample=start + count == tokens)])

    def decode(self, context: int, batch: int, steps: int = STEPS) -> None:
        for step in range(steps):
            self._built.runner.run([Work(one, context + step, 1, sample=True) for one in self._all[:batch]])

    def measure(self, work: Callable[[], None], tokens: int, repetitions: int) -> dict[str, float]:
        """Medians: tokens a second by the wall clock, milliseconds of this thread, microseconds beside the library."""
        walls, own, beside = [], [], []
        for _ in range(repetitions):
            self._network.seconds = 0.0
            wall, used = time.perf_counter(), time.thread_time()
            work()
            used = time.thread_time() - used
            walls.append(time.perf_counter() - wall)
            own.append(used)
            beside.append(used - self._network.seconds)
        return {
            "tokens_per_s": round(tokens / statistics.median(walls), 1),
            "best_tokens_per_s": round(tokens / min(walls), 1),
            "thread_ms": round(statistics.median(own) * 1e3, 2),
            "beside_us": round(statistics.median(beside) * 1e6, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--kernels", default="native")
    parser.add_argument("--quantize", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-dtype", default="int8")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--contexts", type=int, nargs="*", default=[128, 2048])
    parser.add_argument("--prefills", type=int, nargs="*", default=[128, 512, 2048])
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    config = EngineConfig(
        model=model_files(args.model),
        kernels=args.kernels,
        quantize=args.quantize,
        dtype=args.dtype,
        kv_dtype=args.kv_dtype,
        threads=args.threads,
        spill_bytes=0,
    )
    began = time.perf_counter()
    built = build_parts(config, lambda phase, done: None)
    print(
        json.dumps({"load_s": round(time.perf_counter() - began, 2), "numeric_class": built.engine.info.numeric_class})
    )
    most = max([*args.prefills, *(context + STEPS for context in args.contexts)])
    bench = Bench(built, max(args.batches), most)
    bench.prefill(64)
    for tokens in args.prefills:
        found = bench.measure(lambda tokens=tokens: bench.prefill(tokens), tokens, args.repetitions)  # type: ignore[misc]
        print(json.dumps({"prefill": tokens, **found}), flush=True)
    for context in args.contexts:
        bench.prefill(context, max(args.batches))
        for batch in args.batches:

            def decode(context: int = context, batch: int = batch) -> None:
                bench.decode(context, batch)

            found = bench.measure(decode, STEPS * batch, args.repetitions)
            found = {
                key: round(value / STEPS, 2) if key[-2:] in ("ms", "us") else value for key, value in found.items()
            }
            print(json.dumps({"decode": context, "batch": batch, **found}), flush=True)


if __name__ == "__main__":
    main()
