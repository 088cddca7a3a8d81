"""vLLM beside ours on one GPU: `python -m tests.bench.gpu_peer_vllm --python /path/to/python [--shape llama-1b] [--kv bfloat16]`.

Ours and vLLM run alternately, each in a process of its own, on random weights of the same shape and the same batches. `--python`
is an interpreter with vllm 0.23; figures of both and their ratio are printed line by line. With `--one-process` vLLM's engine
runs in the caller's process, which is faster for small models.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

BATCHES = ((1, 128, 256), (8, 128, 256), (32, 128, 256), (64, 1024, 128), (1, 32000, 64), (16, 8000, 64))
_OURS = "tests.bench.gpu"

_PEER = """
import json, sys, tempfile, time
import numpy as np
from vllm import LLM, SamplingParams
shape, kv, batches = json.loads(sys.argv[1])
folder = tempfile.mkdtemp()
json.dump(shape, open(folder + "/config.json", "w"))
llm = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", kv_cache_dtype=kv,
          max_model_len=36000, gpu_memory_utilization=0.6, enable_prefix_caching=False, max_num_batched_tokens=8192, seed=0)
rng = np.random.default_rng(0)
def run(batch, prompt, new):
    asked = [{"prompt_token_ids": rng.integers(10, 100000, prompt).tolist()} for _ in range(batch)]
    began = time.perf_counter()
    told = llm.generate(asked, SamplingParams(max_tokens=new, ignore_eos=True, temperature=0.0, detokenize=False), use_tqdm=False)
    assert all(len(one.outputs[0].token_ids) == new for one in told)
    return time.perf_counter() - began
run(1, 128, 8)
for batch, prompt, new in batches:
    first = min(run(batch, prompt, 1) for _ in range(2))
    whole = min(run(batch, prompt, new + 1) for _ in range(2))
    print(json.dumps([f"{batch}x{prompt}", (whole - first) / new * 1e3, batch * prompt / first]), flush=True)
"""


def peer(python: str, shape: str, kv: str, one_process: bool) -> dict[str, tuple[float, float]]:
    """Of each batch, milliseconds a step and tokens of prompts a second."""
    from tests.bench.gpu_shapes import SHAPES

    env = {
        **os.environ,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if one_process else "1",
    }
    asked = json.dumps([SHAPES[shape], "auto" if kv == "bfloat16" else kv, BATCHES])
    done = subprocess.run([python, "-c", _PEER, asked], env=env, check=True, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: (step_ms, rate) for name, step_ms, rate in lines}


def ours(shape: str, kv: str, out: Path) -> dict[str, float]:
    """Milliseconds a step of each batch that `tests.bench.gpu` has for the shape and KV format."""
    form = "" if kv == "bfloat16" else f" {kv}"
    names = [f"decode {shape} {batch}x{prompt}{form}" for batch, prompt, _ in BATCHES]
    command = [sys.executable, "-m", _OURS, "--no-check", "--repeat", "1", "--json", str(out), "--lines", *names]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    report: dict[str, Any] = json.loads(out.read_text())
    return {line["line"].split()[2]: line["value"] for line in report["lines"] if line["line"] in names}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.gpu_peer_vllm", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="interpreter with vllm")
    parser.add_argument("--shape", default="llama-1b")
    parser.add_argument("--kv", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one-process", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-ours.json"))
    args = parser.parse_args()
    args.out.parent.mkdir(exist_ok=True)
    own: dict[str, list[float]] = {}
    other: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for name, value in ours(args.shape, args.kv, args.out).items():
            own.setdefault(name, []).append(value)
        for name, (step_ms, _) in peer(args.python, args.shape, args.kv, args.one_process).items():
            other.setdefault(name, []).append(step_ms)
    for name, values in own.items():
        if name in other:
            mine, theirs = statistics.median(values), statistics.median(other[name])
            print(f"{args.shape} {args.kv} {name}: ours {mine:.3f} ms, vllm {theirs:.3f} ms, ratio {theirs / mine:.2f}")


if __name__ == "__main__":
    main()
