"""vLLM on one GPU, in a process of an interpreter that has vllm 0.23: what `tests.bench.gpu_side_by_side` sets beside ours.

Random weights of the same shapes and the same batches. In `one_process` vLLM's engine runs in the caller's process, which is
quicker for small models.
"""

from __future__ import annotations

import json
import os
import subprocess

BATCHES = ((1, 128, 256), (8, 128, 256), (32, 128, 256), (64, 1024, 128), (1, 32000, 64), (16, 8000, 64))

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
