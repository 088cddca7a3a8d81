"""transformers' `generate` on the same weights, dequantized, in a process of its own that takes work from standard input.

Prints a line of JSON when ready; then for each line {"prompts": [[ids]], "tokens": n} one with the seconds to the first token of
the batch and to its end. Ends when standard input does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.accept.reference import Reference


class _FirstToken(transformers.StoppingCriteria):  # type: ignore[misc, unused-ignore]
    """Called after each step; it notes the first one and never stops. (Streamers are for a batch of one only.)"""

    def __init__(self) -> None:
        self.first = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: Any) -> torch.Tensor:
        self.first = self.first or time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def run(model: Any, prompts: list[list[int]], tokens: int) -> dict[str, float]:
    """One greedy batch; all prompts have one length."""
    ids = torch.tensor(prompts)
    clock = _FirstToken()
    began = time.perf_counter()
    options = {"do_sample": False, "min_new_tokens": tokens, "max_new_tokens": tokens, "pad_token_id": 0}
    criteria = transformers.StoppingCriteriaList([clock])
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), stopping_criteria=criteria, **options)
    return {"first_s": clock.first - began, "total_s": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    began = time.perf_counter()
    torch.set_num_threads(args.threads)
    model = Reference(args.gguf).model.to(getattr(torch, args.dtype)).eval()
    version = f"{transformers.__version__}, torch {torch.__version__}, {args.dtype}"
    print(json.dumps({"version": version, "load_s": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        print(json.dumps(run(model, work["prompts"], work["tokens"])), flush=True)


if __name__ == "__main__":
    main()
