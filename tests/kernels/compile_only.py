"""Compiles the kernels of decoding and prompts for a card that is not here: python -m tests.kernels.compile_only CAPABILITY.

Triton compiles ahead for a target that its driver names, so a driver with nothing behind it is enough. Prints a line for each
kernel, with the shared memory that it asks for.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction

from edgewise.kernels.paging import KVLayer
from edgewise.kernels.triton import (
    blocks,
    candidates,
    decode_attention,
    decode_product,
    expert_product,
    fp8_product,
    post_norm,
    prefill_attention,
    routing,
)

# 101 is what CUDA 12 called 11.0 (Jetson Thor): Triton 3.6 brings the assembler of 12.9, which knows it by that name.
# Bytes of shared memory of a program (CUDA Programming Guide, "Technical Specifications per Compute Capability").
SHARED = {
    80: 163 << 10,
    86: 99 << 10,
    87: 163 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    101: 227 << 10,
    120: 99 << 10,
}
BF16 = torch.bfloat16
CPU = torch.device("cpu")
COMPILED: list[Any] = []


class NoCard(DriverBase):  # type: ignore[misc]
    """Names a target and answers nothing else."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError(ty)

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


def use(capability: int) -> None:
    """From here on kernels are compiled for `capability`, and not launched."""
    triton.runtime.driver.set_active(NoCard(capability))
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        shared = kernel.metadata.shared
        print(f"sm_{capability} {self.fn.__name__}: {len(kernel.asm['cubin'])} bytes, {shared} bytes of shared memory")
        assert shared <= SHARED[capability], (self.fn.__name__, shared)
        COMPILED.append(kernel)
        return kernel

    JITFunction.run = compile_only
    setattr(candidates, "can_overlap", lambda device: capability >= 90)  # noqa: B010
    for module in (blocks, expert_product):
        setattr(module, "capability", lambda device: divmod(capability, 10))  # noqa: B010
    for module in (blocks, expert_product, fp8_product):
        setattr(module, "shared_memory", lambda device: SHARED[capability])  # noqa: B010


def weight(stored: str, out: int, inner: int) -> decode_product.Weight:
    scale = torch.empty(out, inner // 32, dtype=torch.float16)
    if stored == "int8":
        return decode_product.Weight(torch.empty(out, inner, dtype=torch.int8), scale)
    if stored == "int4":
        return decode_product.Weight(torch.empty(out, inner // 2, dtype=torch.uint8), scale, scale)
    if stored == "fp8":
        return decode_product.Weight(torch.empty(out, inner, dtype=torch.float8_e4m3fn), torch.empty(out))
    return decode_product.Weight(torch.empty(out, inner, dtype=BF16))


def products(stored: str, rows: int, hidden: int = 2048, ffn: int = 8192) -> None:
    """By default; and the last candidate of each form, which has most in it."""
    r = decode_product.Residual.empty(rows, hidden, BF16, CPU)
    up, down = weight(stored, 2 * ffn, hidden), weight(stored, hidden, ffn)
    decode_product.gated(r, up, 1e-5, torch.empty(rows, ffn, dtype=BF16))
    for form in candidates.forms_of(down.codes.dtype):
        cut = candidates.product_candidates(down.codes.dtype, (hidden, ffn), rows, False, CPU, form)[-1]
        decode_product.add(torch.empty(rows, ffn, dtype=BF16), down, r, torch.empty(hidden), cut)


def few_rows(hidden: int = 4096, ffn: int = 14336) -> None:
    """Products as integers without matrix instructions: with every end, and with steps that are not full."""
    for stored, rows in (("int8", 1), ("int4", 4)):
        for inner in (hidden, hidden + 96):
            r = decode_product.Residual.empty(rows, inner, BF16, CPU)
            up = weight(stored, 2 * ffn, inner)
            cut = blocks.choose_blocks(up.codes.dtype, (2 * ffn, inner), rows, True, CPU, "integers")
            assert cut.steps, cut
            decode_product.gated(r, up, 1e-5, torch.empty(rows, ffn, dtype=BF16), "silu", cut)
        r = decode_product.Residual.empty(rows, hidden, BF16, CPU)
        down = weight(stored, hidden, ffn)
        cut = blocks.choose_blocks(down.codes.dtype, (hidden, ffn), rows, False, CPU, "integers")
        decode_product.add(torch.empty(rows, ffn, dtype=BF16), down, r, torch.empty(hidden), cut)


def normed(hidden: int = 2304) -> None:
    """A block whose result is normed before it is added."""
    r = decode_product.Residual.empty(1, hidden, BF16, CPU)
    delta = decode_product.plain(torch.empty(1, 2048, dtype=BF16), weight("float", hidden, 2048), r.scaled)
    post_norm.post_add(delta, torch.empty(hidden), r, torch.empty(hidden), 1e-5)


def experts(
    stored: str, tokens: int, form: blocks.Form = "plain", shape: tuple[int, ...] = (128, 8, 2048, 768)
) -> None:
    """A layer of Qwen3-30B-A3B by default; 64 tokens and fewer as a step, more as prompts."""
    count, k, hidden, ffn = shape
    up, down = weight(stored, count * 2 * ffn, hidden), weight(stored, count * hidden, ffn)
    step = tokens <= routing.MOST_TOGETHER
    tile = expert_product.step_tile_rows(tokens) if step else expert_product.prompt_tile_rows(CPU)
    slots = torch.empty(tokens, dtype=torch.int64)
    routed = routing.route_tokens(torch.empty(tokens, count, dtype=BF16), slots, k, normalised=True, tile_rows=tile)
    active, parts = (torch.empty(tokens * k, columns, dtype=BF16) for columns in (ffn, hidden))
    r = decode_product.Residual.empty(tokens, hidden, BF16, CPU)
    if step:
        expert_product.gated_step(r, routed, up, 1e-5, active, form=form)
    else:
        expert_product.gated_experts(r.scaled, routed, up, active, form=form)
    expert_product.down_experts(active, routed, down, parts, form)
    if step:
        expert_product.add_experts(parts, routed, r, torch.empty(hidden))
    else:
        expert_product.sum_experts(parts, routed, r.x)


def attention(stored: torch.dtype, head_dim: int, rows: int = 2) -> None:
    pages = [torch.empty(4, 8, 16, head_dim, dtype=stored) for _ in range(2)]
    scales = [torch.empty(4, 8, 16) for _ in range(2)] if stored.itemsize == 1 else [None, None]
    kv = KVLayer(*pages, *scales)
    integers = torch.empty(rows, dtype=torch.int64)
    angles, tables = torch.empty(64, head_dim // 2), torch.empty(rows, 128, dtype=torch.int32)
    qkv, out = torch.empty(rows, 48 * head_dim, dtype=BF16), torch.empty(rows, 32 * head_dim, dtype=BF16)
    forms, cuts = candidates.attention_forms(stored), candidates.attention_candidates(CPU, head_dim)
    for form, cut in ((forms[0], cuts[0]), (forms[-1], cuts[-1])):
        space = decode_attention.Workspace.empty(rows, 32, head_dim, decode_attention.splits(2048, form), CPU)
        decode_attention.decode_attention(
            qkv, kv, integers, integers, tables, angles, angles, out, space, heads=32, scale=0.1, max_context=2048,
            form=form, blocks=cut,
        )  # fmt: skip
    q = torch.empty(rows, 32, head_dim, dtype=BF16)
    prefill_attention.rope_append(qkv, kv, integers, integers, angles, angles, q, heads=32)
    lengths = torch.empty(rows, dtype=torch.int32)
    starts = torch.empty(rows + 1, dtype=torch.int32)
    prefill_attention.prefill_attention(q, kv, starts, lengths, tables, torch.empty_like(q), scale=0.1, max_query=1)


def floats_of_8_bits() -> None:
    """Weights and activations in fp8: steps, and prompts with a bias and without."""
    products("fp8", 1)
    up = weight("fp8", 8192, 2048)
    assert up.scale is not None
    own, step = fp8_product.round_rows(torch.empty(300, 2048, dtype=BF16))
    for bias in (None, torch.empty(8192, dtype=BF16)):
        fp8_product.long_product(own, step, up.codes, up.scale, bias, BF16, 128)
    attention(torch.float8_e4m3fn, 128)
    one_instruction_for_all_rows(up)


def one_instruction_for_all_rows(weight: decode_product.Weight) -> None:
    """Of the form "native", whose instructions do not all add in as many bits."""
    shape, found = (weight.codes.shape[0], weight.columns), set()
    for rows in blocks.ROW_CLASSES:
        r = decode_product.Residual.empty(rows, shape[1], BF16, CPU)
        cut = blocks.choose_blocks(weight.codes.dtype, shape, rows, False, CPU, "native")
        decode_product.project(r, weight, 1e-5, torch.empty(rows, shape[0], dtype=BF16), cut)
        found.add(frozenset(re.findall(r"(wgmma|tcgen05|mma)\S*?[.:](f8f6f4|e4m3|f16)", COMPILED[-1].asm["ptx"])))
    print(f"native: {sorted(map(sorted, found))}")
    assert len(found) == 1, found
    assert all(found), found


def main(capability: int) -> None:
    use(capability)
    if capability == 89:  # which is 8.6 with fp8
        floats_of_8_bits()
        return
    products("float", 1)
    products("float", 64)
    products("int4", 1)
    products("int8", 1)
    few_rows()
    normed()
    experts("float", 1)
    for tokens in (1, 64):
        experts("float", tokens, shape=(8, 2, 4096, 14336))
    experts("float", 100)
    experts("int4", 16)
    for stored in ("int8", "int4"):
        experts(stored, 1, "integers")
        experts(stored, 100)
    attention(BF16, 128)
    attention(torch.int8, 64)
    if capability >= 89:
        floats_of_8_bits()


if __name__ == "__main__":
    main(int(sys.argv[1]))
