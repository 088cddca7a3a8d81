"""Seconds from the start of a process to the first token of a model on disk: `python -m tests.bench.gpu_load [--shape llama-8b]`.

A checkpoint of random weights is written once; then processes of their own load it, the first to fill the caches of compiled
kernels and of the file system. What is printed is of the others: the whole time, its parts, and the card's memory at the peak
of loading as a share of the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SETTLED = 1.15  # the peak of memory while loading, as a share of the weights, that is promised
_BEGAN = "GPU_LOAD_BEGAN"


def _tensors(shape: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    from tests.bench.gpu_shapes import config_of

    config = config_of(shape)
    hidden, queries, keys = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for index in range(config.num_layers):
        layer = f"model.layers.{index}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "self_attn.q_proj.weight", (queries, hidden)
        yield layer + "self_attn.k_proj.weight", (keys, hidden)
        yield layer + "self_attn.v_proj.weight", (keys, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, queries)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "mlp.gate_proj.weight", (config.ffn_size, hidden)
        yield layer + "mlp.up_proj.weight", (config.ffn_size, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, config.ffn_size)
    yield "model.norm.weight", (hidden,)
    if not config.tied_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def write_checkpoint(shape: str, folder: Path) -> None:
    """One safetensors file with config.json beside it; values are drawn on the card."""
    import torch

    from tests.bench.gpu_shapes import write_config

    write_config(shape, folder)
    header: dict[str, object] = {}
    end = 0
    for name, size in _tensors(shape):
        first, end = end, end + 2 * torch.Size(size).numel()
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [first, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in _tensors(shape):
            values = torch.empty(size, dtype=torch.bfloat16, device="cuda")
            if name.endswith("norm.weight"):
                values.fill_(1.0)
            else:
                values.normal_(0.0, size[-1] ** -0.5)
            file.write(values.view(torch.uint8).cpu().numpy().data)


def child(folder: Path) -> None:
    """Load, answer one token, print what it took."""
    began = float(os.environ[_BEGAN])
    parts = {}

    def mark(what: str) -> None:
        parts[what] = round(time.time() - began, 3)

    import torch

    from edgewise.engine.build import build
    from edgewise.engine.config import EngineConfig
    from edgewise.engine.request import GenerateRequest, SamplingParams
    from edgewise.models.files import ModelFiles

    mark("imported")
    torch.zeros(1, device="cuda")
    mark("card_ready")
    paths = {path.name: path for path in folder.iterdir()}
    files = ModelFiles(name="random", digest="sha256:" + "0" * 64, format="safetensors", paths=paths)
    peak = 0

    def progress(phase: str, done: float) -> None:
        nonlocal peak
        if phase == "weights" and done == 1.0:
            mark("weights")
            peak = torch.cuda.max_memory_allocated()

    core = build(EngineConfig(model=files, device="cuda", max_context=8192, kv_memory_bytes=2 << 30), progress)
    mark("built")
    prompt = tuple(range(100, 228))
    core.add(GenerateRequest(id="a", prompt=prompt, sampling=SamplingParams(max_tokens=2)))
    while not any(chunk.tokens for chunk in core.step()):
        pass
    mark("first_token")
    while core.has_work:
        core.step()
    mark("second_token")
    size = (folder / "model.safetensors").stat().st_size
    print(json.dumps({**parts, "peak_of_weights": round(peak / size, 3)}), flush=True)
    os._exit(0)


def measure(shape: str, repeat: int) -> dict[str, Any]:
    """Figures of one cold run and `repeat` warm ones.

    Raises:
        AssertionError: More memory was taken at the peak than is promised.
    """
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        began = time.time()
        write_checkpoint(shape, folder)
        print(f"{shape}: written in {time.time() - began:.1f} s", file=sys.stderr, flush=True)
        for number in range(repeat + 1):
            command = [sys.executable, "-m", "tests.bench.gpu_load", "--child", str(folder)]
            env = {**os.environ, _BEGAN: str(time.time())}
            done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
            told = done.stdout.strip().splitlines()[-1]
            print(f"load {shape} {'cold' if number == 0 else 'warm'}: {told}", file=sys.stderr, flush=True)
            runs.append({"cold": number == 0, **json.loads(told)})
            assert runs[-1]["peak_of_weights"] <= _SETTLED, told
    return {"shape": shape, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.gpu_load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there as well")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        child(args.child)
    found = measure(args.shape, args.repeat)
    print(json.dumps(found))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
