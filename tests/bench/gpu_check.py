"""Whether the CUDA decoder computes what the reference does: logits of both ways against float32.

The reference has the card's own weights, of rounded ones the numbers that their codes stand for. So what is measured is what
kernels add, and a limit can be a few percent; what rounding weights itself costs is printed beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch

from edgewise.engine.kv_cache import allocate
from edgewise.engine.weight_choice import FP8_CAPABILITY
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.kernels.triton.decode_product import Weight
from edgewise.kernels.triton.weights import unpack
from edgewise.models.decoder.cuda.network import CudaDecoder
from edgewise.models.decoder.cuda.weights import CardWeights, card_weights
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.rows import DecodeRow
from tests.bench.gpu_shapes import config_of, random_decoder

KV_LIMIT = {"bfloat16": 0.03, "int8": 0.05, "fp8": 0.10}
"""By format of the KV pages, which round here and not in the reference."""
WEIGHT_LIMIT: dict[Quantize, float] = {"int8": 0.03, "int4": 0.03, "fp8": 0.12}
"""By format of weights. Beside fp8 activations are rounded too, which costs as much as rounding the weights."""
LENGTHS = (1, 7, 16, 100, 300)
_MATRICES = ("qkv", "output", "gate_up", "down")


class Network(Protocol):
    """What computes logits: a decoder on a card or in float32."""

    def forward(self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors of logits: of the last token of prompts, and of one decoded token behind each."""

    prompts: float
    answers: float

    def __str__(self) -> str:
        return f"error of prompts {self.prompts:.4f}, of answers {self.answers:.4f}"

    def judge(self, limit: float, name: str) -> None:
        print(f"check {name}: {self}", flush=True)
        assert max(self.prompts, self.answers) < limit, (name, self, limit)


def in_float32(decoder: Decoder) -> Decoder:
    """The same weights, exactly, computed in float32."""

    def wide(part: Any) -> Any:
        values = {f.name: getattr(part, f.name) for f in fields(part)}
        return {k: v.float() if isinstance(v, torch.Tensor) else v for k, v in values.items()}

    layers = tuple(replace(layer, **wide(layer)) for layer in decoder.parameters.layers)
    whole = replace(decoder.parameters, **{**wide(decoder.parameters), "layers": layers})
    return Decoder(decoder.config, whole, decoder.ropes)


def as_rounded(exact: Decoder, weights: CardWeights) -> Decoder:
    """Computed in float32 with the numbers that a card's rounded weights stand for."""

    def floats(weight: Weight, like: torch.Tensor) -> torch.Tensor:
        out = torch.empty((weight.codes.shape[0], weight.columns), device=like.device)
        return unpack(weight, out).view(like.shape)

    layers = tuple(
        replace(layer, **{name: floats(getattr(own, name), getattr(layer, name)) for name in _MATRICES})
        for layer, own in zip(exact.parameters.layers, weights.layers, strict=True)
    )
    parameters = replace(exact.parameters, layers=layers, head=floats(weights.head, exact.parameters.head))
    return Decoder(exact.config, parameters, exact.ropes)


def check_shape(shape: str) -> None:
    """Raise AssertionError unless prompts and answers are right within the rounding of their formats.

    Two layers are computed, of a mixture of experts one. A bit may turn a token that lies between two experts, so there the
    errors of most rows count, elsewhere that of all together.
    """
    cuda = torch.device("cuda")
    loaded = random_decoder(config_of(shape, 1 if config_of(shape).experts else 2), cuda)
    exact = in_float32(loaded)
    for kv_dtype, limit in KV_LIMIT.items():
        weights = card_weights(loaded.config, loaded.parameters, loaded.ropes)
        compare(weights, exact, kv_dtype).judge(limit, f"{shape}, KV {kv_dtype}")
    for quantize, limit in WEIGHT_LIMIT.items():
        if quantize == "fp8" and (torch.cuda.get_device_capability() < FP8_CAPABILITY or loaded.config.experts):
            continue
        weights = card_weights(loaded.config, loaded.parameters, loaded.ropes, quantize)
        print(f"{shape}, weights {quantize}, to those that were rounded: {compare(weights, exact)}", flush=True)
        compare(weights, as_rounded(exact, weights)).judge(limit, f"{shape}, weights {quantize}")


@torch.inference_mode()
def compare(
    weights: CardWeights, reference: Network, kv_dtype: str = "bfloat16", lengths: tuple[int, ...] = LENGTHS
) -> Error:
    """Prompts of `lengths`, and a token behind each, both ways. Pages that were not written hold NaN, or large numbers."""
    config, device, card = weights.config, weights.device, CudaDecoder(weights)
    counts = [-(-(length + 1) // PAGE_TOKENS) for length in lengths]
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    pages = [list(range(first, first + count)) for first, count in zip(firsts, counts, strict=True)]
    generator = torch.Generator(device).manual_seed(3)
    tokens = torch.randint(0, config.vocab_size, (sum(lengths),), device=device, generator=generator)
    following = [10 + index for index in range(len(lengths))]
    ends = torch.tensor(lengths, device=device).cumsum(0) - 1
    prompts, answers = [], []
    both: tuple[tuple[Network, str], ...] = ((card, kv_dtype), (reference, "float32"))
    for network, name in both:
        kv = allocate(config, num_pages=sum(counts), kv_dtype=name, dtype="bfloat16", device=device)
        for layer in kv:
            for part in (layer.k, layer.v):
                part.view(torch.uint8).fill_(0x7F)
        meta = _meta(pages, lengths, (0,) * len(lengths), device)
        prompts.append(network.logits(network.forward(tokens, kv, meta)[ends]))
        if network is card:
            loop = card.loop(kv, max_rows=8, max_pages=64)
            rows = [
                DecodeRow(token=token, position=length, pages=own)
                for token, length, own in zip(following, lengths, pages, strict=True)
            ]
            flight = loop.launch(rows)
            drawn, logits = flight.tokens(), flight.logits
            assert drawn == logits.argmax(-1).tolist(), (drawn, logits.argmax(-1).tolist())
            answers.append(logits.clone())
        else:
            meta = _meta(pages, (1,) * len(lengths), lengths, device)
            answers.append(network.logits(network.forward(torch.tensor(following, device=device), kv, meta)))
    most = config.experts is not None
    return Error(*(_relative(found, expected, most) for found, expected in (prompts, answers)))


def _meta(
    pages: list[list[int]], counts: tuple[int, ...], starts: tuple[int, ...], device: torch.device
) -> AttentionMeta:
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
        positions=torch.cat(positions).to(device),
        slots=torch.cat(slots).to(device),
        block_tables=tables.to(device),
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
