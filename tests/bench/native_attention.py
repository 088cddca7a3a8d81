"""Attention of one decoding step over int8 pages: `python -m tests.bench.native_attention [--isa avx2]`.

Times are of the one thread's processor (CLOCK_THREAD_CPUTIME_ID), so other work on the machine counts only where it takes caches
and memory bandwidth; medians. Layers are visited in turn, as a step does, so long contexts come from memory and short ones from
the caches that would hold them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from edgewise.kernels.native.attention import attention
from edgewise.kernels.native.library import isa, set_threads, use_isa
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer

_POOL_BYTES = 192 << 20  # more than caches hold
_SECONDS = 0.6  # of processor time per line


@dataclass(frozen=True)
class Shape:
    name: str
    heads: int
    kv_heads: int
    head_dim: int
    layers: int


SHAPES = (
    Shape("SmolLM2-135M", 9, 3, 64, 30),
    Shape("1B", 32, 8, 64, 16),
    Shape("8B", 32, 8, 128, 32),
)


def layer(shape: Shape, num_pages: int) -> KVLayer:
    size = (num_pages, shape.kv_heads, PAGE_TOKENS, shape.head_dim)
    k, v = (torch.randint(-127, 128, size, dtype=torch.int8) for _ in range(2))
    return KVLayer(k, v, *(torch.rand(size[:3]) / 100 for _ in range(2)))


def meta(batch: int, context: int) -> AttentionMeta:
    """A sequence's pages follow one another, as those of a prompt in an empty cache."""
    pages = -(-context // PAGE_TOKENS)
    tables = torch.arange(batch * pages, dtype=torch.int32).view(batch, pages)
    at = torch.full((batch,), context - 1)
    slots = tables[:, -1].long() * PAGE_TOKENS + (context - 1) % PAGE_TOKENS
    return AttentionMeta((1,) * batch, (context,) * batch, at, slots, tables)


def measure(shape: Shape, batch: int, context: int) -> tuple[float, int]:
    """Seconds of a layer, and bytes that it reads."""
    layout = meta(batch, context)
    num_pages = layout.block_tables.numel()
    size = num_pages * shape.kv_heads * PAGE_TOKENS * 2 * (shape.head_dim + 4)
    layers = [layer(shape, num_pages) for _ in range(max(2, min(shape.layers, _POOL_BYTES // size)))]
    q = torch.randn(batch, shape.heads, shape.head_dim)

    def times() -> Iterator[float]:
        end = time.thread_time() + _SECONDS
        while time.thread_time() < end:
            for kv in layers:
                before = time.thread_time_ns()
                attention(q, kv, layout, shape.head_dim**-0.5, None, None)
                yield (time.thread_time_ns() - before) / 1e9

    return statistics.median(times()), batch * context * shape.kv_heads * 2 * (shape.head_dim + 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--isa", default="", help="an instruction set of this processor; the best without")
    parser.add_argument("--shapes", default="", help="part of a shape's name")
    parser.add_argument("--contexts", default="128,2048,8000")
    args = parser.parse_args()
    use_isa(args.isa)
    set_threads(1)
    torch.set_num_threads(1)
    print(f"{isa()}, one thread: time of a layer; per key of a KV head; bytes of keys, values and scales read")
    print("| shape | streams | context | us per layer | ns per key | GB/s |")
    print("|---|---|---|---|---|---|")
    for shape in SHAPES:
        for batch in (1, 8):
            for context in map(int, args.contexts.split(",")):
                if args.shapes not in shape.name:
                    continue
                seconds, size = measure(shape, batch, context)
                keys = batch * context * shape.kv_heads
                print(
                    f"| {shape.name} | {batch} | {context} | {seconds * 1e6:.0f} | {seconds * 1e9 / keys:.2f} "
                    f"| {size / seconds / 1e9:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
