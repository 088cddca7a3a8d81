"""llama.cpp in this process (package `xllamacpp`), without HTTP, taking work from standard input as `cpu_edgewise` does.

Run by whichever interpreter has the package; nothing of this repository is imported. The times are llama.cpp's own (`timings`):
the prompt's, and those between the tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp  # type: ignore[import-not-found, unused-ignore]

KV_TYPES = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0"}


def complete(server: Any, slot: int, prompt: list[int], tokens: int) -> list[float]:
    """Seconds to the first and to the last token of one answer."""
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "id_slot": slot,
        "cache_prompt": True,
    }
    began = time.perf_counter()
    times = server.handle_completions(body)["timings"]
    if times["predicted_n"] != tokens:
        raise RuntimeError(f"{times['predicted_n']} tokens instead of {tokens}")
    last = time.perf_counter() - began
    return [last - times["predicted_ms"] / 1e3, last] if tokens > 1 else [last, last]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of each stream")
    parser.add_argument("--kv", choices=KV_TYPES, default="f16")
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.gguf
    params.n_parallel = args.streams
    params.n_ctx = args.streams * args.context
    params.kv_unified = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, KV_TYPES[args.kv])
    params.port = 0
    params.verbosity = 1  # errors only
    began = time.perf_counter()
    server = xllamacpp.Server(params)
    ready = {"version": xllamacpp.__version__, "load_s": time.perf_counter() - began}
    print(json.dumps(ready), flush=True)
    with ThreadPoolExecutor(args.streams) as pool:
        for line in sys.stdin:
            work = json.loads(line)
            jobs = [
                pool.submit(complete, server, slot, one, work["tokens"]) for slot, one in enumerate(work["prompts"])
            ]
            print(json.dumps({"spans": [job.result() for job in jobs]}), flush=True)


if __name__ == "__main__":
    main()
