"""Whether the CUDA decoder computes what the reference does: logits of both ways against float32."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from typing import Any

import torch

from edgewise.engine.kv_cache import allocate
from edgewise.engine.weight_choice import FP8_CAPABILITY
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta
from edgewise.models.decoder.cuda.network import CudaDecoder
from edgewise.models.decoder.cuda.weights import card_weights
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.rows import DecodeRow
from tests.bench.gpu_shapes import config_of, random_decoder

LIMIT = {"bfloat16": 0.03, "int8": 0.05, "fp8": 0.10}
LENGTHS = (1, 7, 16, 100, 300)
CUDA = torch.device("cuda")


def in_float32(decoder: Decoder) -> Decoder:
    """The same weights, exactly, computed in float32."""

    def wide(part: Any) -> Any:
        values = {f.name: getattr(part, f.name) for f in fields(part)}
        return {k: v.float() if isinstance(v, torch.Tensor) else v for k, v in values.items()}

    layers = tuple(replace(layer, **wide(layer)) for layer in decoder.parameters.layers)
    whole = replace(decoder.parameters, **{**wide(decoder.parameters), "layers": layers})
    return Decoder(decoder.config, whole, decoder.ropes)


def check_shape(shape: str) -> None:
    """Raise AssertionError unless prompts and answers are right within the rounding of their formats.

    Two layers are computed, of a mixture of experts one. Rounding may turn a token that lies between two experts, so there the
    errors of most rows count, elsewhere that of all together.
    """
    loaded = random_decoder(config_of(shape, 1 if config_of(shape).experts else 2), CUDA)
    exact = in_float32(loaded)
    for kv_dtype, limit in LIMIT.items():
        prompt, answer = errors(loaded, exact, kv_dtype)
        print(f"check {shape}, KV {kv_dtype}: error of prompts {prompt:.4f}, of answers {answer:.4f}", flush=True)
        assert max(prompt, answer) < limit, (shape, kv_dtype, prompt, answer)
    rounded: list[tuple[Quantize, float]] = [("int8", 0.05), ("int4", 0.35)]
    if torch.cuda.get_device_capability() >= FP8_CAPABILITY and loaded.config.experts is None:
        rounded.append(("fp8", 0.15))
    for quantize, limit in rounded:
        prompt, answer = errors(loaded, exact, "bfloat16", quantize)
        print(f"check {shape}, weights {quantize}: error of prompts {prompt:.4f}, of answers {answer:.4f}", flush=True)
        assert max(prompt, answer) < limit, (shape, quantize, prompt, answer)


def errors(loaded: Decoder, exact: Decoder, kv_dtype: str, quantize: Quantize = "none") -> tuple[float, float]:
    """Relative errors of logits: of the last token of prompts, and of one decoded token behind each."""
    config = loaded.config
    card = CudaDecoder(card_weights(config, loaded.parameters, loaded.ropes, quantize))
    counts = [-(-(length + 1) // PAGE_TOKENS) for length in LENGTHS]
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    pages = [list(range(first, first + count)) for first, count in zip(firsts, counts, strict=True)]
    generator = torch.Generator(CUDA).manual_seed(3)
    tokens = torch.randint(0, config.vocab_size, (sum(LENGTHS),), device=CUDA, generator=generator)
    found: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    for network, name in ((card, kv_dtype), (exact, "float32")):
        kv = allocate(config, num_pages=sum(counts), kv_dtype=name, dtype="bfloat16", device=CUDA)
        for layer in kv:
            for part in (layer.k, layer.v):
                part.view(torch.uint8).fill_(0x7F)  # never written: NaN, or large
        ends = torch.tensor(LENGTHS, device=CUDA).cumsum(0) - 1
        logits = network.logits(network.forward(tokens, kv, _meta(pages, LENGTHS, (0,) * len(LENGTHS)))[ends])
        (found if network is card else expected).append(logits)
        following = [10 + index for index in range(len(LENGTHS))]
        if network is card:
            loop = card.loop(kv, max_rows=8, max_pages=64)
            rows = [
                DecodeRow(token=token, position=length, pages=own)
                for token, length, own in zip(following, LENGTHS, pages, strict=True)
            ]
            flight = loop.launch(rows)
            drawn, logits = flight.tokens(), flight.logits
            assert drawn == logits.argmax(-1).tolist(), (drawn, logits.argmax(-1).tolist())
            found.append(logits.clone())
        else:
            meta = _meta(pages, (1,) * len(LENGTHS), LENGTHS)
            expected.append(exact.logits(exact.forward(torch.tensor(following, device=CUDA), kv, meta)))
    most = config.experts is not None
    return _relative(found[0], expected[0], most), _relative(found[1], expected[1], most)


def _meta(pages: list[list[int]], counts: tuple[int, ...], starts: tuple[int, ...]) -> AttentionMeta:
    tables = torch.zeros((len(pages), max(map(len, pages))), dtype=torch.int32)
    positions, slots = [], []
    for row, (own, count, start) in enumerate(zip(pages, counts, starts, strict=True)):
        tables[row, : len(own)] = torch.tensor(own)
        at = torch.arange(start, start + count)
        positions.append(at)
        slots.append(torch.tensor(own)[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS)
    return AttentionMeta(
        query_lens=counts,
        context_lens=tuple(start + count for start, count in zip(starts, counts, strict=True)),
        positions=torch.cat(positions).to(CUDA),
        slots=torch.cat(slots).to(CUDA),
        block_tables=tables.to(CUDA),
    )


def _relative(found: torch.Tensor, expected: torch.Tensor, most: bool) -> float:
    """Of all rows together; `most`: the median of the rows'."""
    apart, size = found.double() - expected.double(), expected.double()
    if most:
        return float((apart.norm(dim=1) / size.norm(dim=1)).median())
    return float(apart.norm() / size.norm())


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.gpu_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shapes", nargs="+")
    for shape in parser.parse_args().shapes:
        check_shape(shape)


if __name__ == "__main__":
    main()
