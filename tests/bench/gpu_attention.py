"""Needles in long contexts, by the attention of decoding over pages of 16 and 8 bits: `python -m tests.bench.gpu_attention`.

A sequence of random keys and values has one key that the query points at, so strongly that float64 gives it nine tenths of all
weight. What the kernel returns is compared with float64 over keys and values before they were rounded to the pages' format, and
the value whose direction it has must be the needle's. Fp8 products on Hopper accumulate in fewer bits; ours multiply 16-bit
numbers, which this shows at 8k, 32k and 128k tokens.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.paging import PAGE_TOKENS, SCALED_FORMATS, KVLayer
from edgewise.kernels.triton.candidates import attention_forms
from edgewise.kernels.triton.decode_attention import AttentionForm, Workspace, decode_attention, splits

CONTEXTS = (8192, 32768, 131072)
FORMATS = {"bfloat16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
LEAST_COSINE = 0.999
_DEPTHS = (0.0, 0.1, 0.5, 0.9, 0.999)
_KV_HEADS, _GROUP, _HEAD = 2, 4, 128
_WEIGHT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Over all depths and heads: the largest relative error to float64, the least cosine to it, needles found of all."""

    context: int
    kv: str
    form: str
    error: float
    cosine: float
    found: int
    of: int

    @property
    def lost(self) -> bool:
        return self.found < self.of or not self.cosine >= LEAST_COSINE


def recalls(
    contexts: Sequence[int], kv: str, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> Iterator[Recall]:
    """For every form of attention over such pages."""
    stored = FORMATS[kv] if kv in FORMATS else getattr(torch, kv)
    for context in contexts:
        generator = torch.Generator(device).manual_seed(context)
        k, v = (torch.randn((context, _KV_HEADS, _HEAD), generator=generator, device=device) for _ in range(2))
        needles = [min(context - 1, int(depth * context)) for depth in _DEPTHS]
        q = (_strength(context) * k[needles]).repeat_interleave(_GROUP, dim=1).to(dtype)
        expected = _exact(q, k, v)
        layer = _paged(k, v, stored)
        for form in attention_forms(stored):
            out = _attend(q, layer, context, form).double()
            error = (out - expected).norm(dim=-1) / expected.norm(dim=-1)
            cosine = torch.nn.functional.cosine_similarity(out, expected, dim=-1)
            nearest = torch.einsum("nhd,thd->nht", out, v.double().repeat_interleave(_GROUP, dim=1)).argmax(-1)
            found = (nearest == torch.tensor(needles, device=device)[:, None]).sum()
            yield Recall(
                context=context,
                kv=kv,
                form="/".join(map(str, form)),
                error=round(float(error.max()), 6),
                cosine=round(float(cosine.min()), 6),
                found=int(found),
                of=nearest.numel(),
            )


def _strength(context: int) -> float:
    """How long a query along its key is, so that the key has `_WEIGHT`: scores of the others are normal with variance c^2."""
    wanted = math.log(_WEIGHT / (1 - _WEIGHT)) + math.log(context)
    root = math.sqrt(_HEAD)
    return root - math.sqrt(max(root * root - 2 * wanted, 0.0))


def _exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[needles, heads, head] float64."""
    own, values = (x.double().repeat_interleave(_GROUP, dim=1) for x in (k, v))
    scores = torch.einsum("nhd,thd->nht", q.double(), own) / math.sqrt(_HEAD)
    return torch.einsum("nht,thd->nhd", scores.softmax(-1), values)


def _paged(k: torch.Tensor, v: torch.Tensor, stored: torch.dtype) -> KVLayer:
    pages = -(-k.shape[0] // PAGE_TOKENS)
    size = (pages, _KV_HEADS, PAGE_TOKENS, _HEAD)
    parts = [torch.zeros(size, device=k.device).to(stored) for _ in range(2)]
    scales = [torch.zeros(size[:3], device=k.device) for _ in range(2)] if stored in SCALED_FORMATS else []
    layer = KVLayer(*parts, *scales)
    write_kv(layer, k, v, torch.arange(k.shape[0], device=k.device))
    return layer


def _attend(q: torch.Tensor, layer: KVLayer, context: int, form: AttentionForm) -> torch.Tensor:
    """Each query sees all of the sequence, whose last token is stored already."""
    rows, heads = q.shape[0], q.shape[1]
    qkv = torch.cat((q.flatten(1), q.new_zeros((rows, 2 * _KV_HEADS * _HEAD))), dim=1)
    positions = torch.full((rows,), context - 1, device=q.device)
    table = torch.arange(layer.k.shape[0], dtype=torch.int32, device=q.device).expand(rows, -1).contiguous()
    out = torch.full((rows, heads * _HEAD), torch.nan, dtype=q.dtype, device=q.device)
    space = Workspace.empty(rows, heads, _HEAD, splits(context, form), q.device)
    decode_attention(
        qkv, layer, positions, positions, table, None, None, out, space, heads=heads, scale=_HEAD**-0.5, max_context=context,
        append=False, form=form,
    )  # fmt: skip
    return out.view(rows, heads, _HEAD)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.gpu_attention", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--contexts", type=int, nargs="*", default=list(CONTEXTS))
    args = parser.parse_args()
    device = torch.device("cuda")
    formats = list(FORMATS) if torch.cuda.get_device_capability() >= (8, 9) else ["bfloat16", "int8"]
    found = []
    with torch.inference_mode():
        for kv in formats:
            for recall in recalls(args.contexts, kv, device):
                found.append(recall)
                state = "LOST" if recall.lost else "kept"
                print(
                    f"{recall.kv:9} {recall.context:7} {recall.form:14} error {recall.error:.5f}, cosine {recall.cosine:.6f}, "
                    f"{recall.found} of {recall.of} needles: {state}",
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps([{**asdict(recall), "lost": recall.lost} for recall in found], indent=1))
    raise SystemExit(any(recall.lost for recall in found))


if __name__ == "__main__":
    main()
