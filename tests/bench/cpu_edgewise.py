"""Our engine in this process, taking work from standard input: `tests.bench.cpu` runs it beside its peers.

Prints a line of JSON when ready; then for each line {"prompts": [[ids]], "tokens": n} one with the seconds to the first and to
the last token of each answer. Ends when standard input does. Guessing (speculation) is off: kernels are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.models.files import ModelFiles


def answer(engine: Engine, prompts: list[list[int]], tokens: int) -> list[list[float]]:
    """Seconds from the submission of all to the first and the last token of each."""
    began = time.perf_counter()
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0)
    for number, prompt in enumerate(prompts):
        engine.add(GenerateRequest(id=str(number), prompt=tuple(prompt), sampling=sampling))
    spans: dict[str, list[float]] = {}
    while engine.has_work:
        for chunk in engine.step():
            if chunk.finish not in (None, "length"):
                raise RuntimeError(f"an answer ended with {chunk.finish}: {chunk.error_message}")
            now = time.perf_counter() - began
            spans.setdefault(chunk.request_id, [now, now])[1] = now
    return [spans[str(number)] for number in range(len(prompts))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of each stream")
    parser.add_argument("--kv-mib", type=int, required=True)
    parser.add_argument("--quantize", default="auto")
    parser.add_argument("--kernels", default="auto")
    args = parser.parse_args()
    files = ModelFiles(name=args.gguf.stem, digest=f"sha256:{'0' * 64}", format="gguf", paths={"model.gguf": args.gguf})
    began = time.perf_counter()
    engine = build(
        EngineConfig(
            model=files,
            device="cpu",
            threads=args.threads,
            max_context=args.context,
            kv_memory_bytes=args.kv_mib << 20,
            spill_bytes=0,
            quantize=args.quantize,
            kernels=args.kernels,
            speculation="off",
        ),
        lambda *_: None,
    )
    ready = {"version": engine.info.numeric_class, "load_s": time.perf_counter() - began}
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        print(json.dumps({"spans": answer(engine, work["prompts"], work["tokens"])}), flush=True)


if __name__ == "__main__":
    main()
