"""Decoders with experts on a card, under Triton's interpreter: the reference's tokens, the same bits in any batch, its bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels.interpreter import interpreted_decoder

interpreted_decoder()

from edgewise.engine.kv_cache import allocate  # noqa: E402 - Triton must be told to interpret before it is imported
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta  # noqa: E402
from edgewise.kernels.triton.plan import DEFAULT_PLAN  # noqa: E402
from edgewise.models.decoder.config import DecoderConfig  # noqa: E402
from edgewise.models.decoder.cuda.fused import FusedStep  # noqa: E402
from edgewise.models.decoder.cuda.loop import DecodeLoop  # noqa: E402
from edgewise.models.decoder.cuda.plain import PlainStep  # noqa: E402
from edgewise.models.decoder.cuda.prompts import PromptPass  # noqa: E402
from edgewise.models.decoder.cuda.support import card_weight_bytes, why_not  # noqa: E402
from edgewise.models.decoder.cuda.weights import CardWeights, card_weights  # noqa: E402
from edgewise.models.decoder.cuda.whole_step import WholeStep  # noqa: E402
from edgewise.models.decoder.rows import DecodeRow  # noqa: E402
from tests.bench.gpu_check import in_float32  # noqa: E402
from tests.bench.gpu_shapes import SHAPES, random_decoder  # noqa: E402

CPU = torch.device("cpu")
LENGTHS = (3, 20, 9)
PAGES = [[0, 1], [2, 3], [4, 5]]
WAITING = {"_local_scalar_dense", "bincount", "masked_select", "nonzero", "unique_consecutive", "_unique2"}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about NaN in padding

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 96,
    "max_position_embeddings": 256,
}
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {**SHAPES["mixtral-12b"], **SMALL, "num_local_experts": 4},
    "qwen3_moe": {
        **SHAPES["qwen3-moe-11b"],
        **SMALL,
        "moe_intermediate_size": 32,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "mlp_only_layers": [0],
    },
}


@pytest.fixture(params=MODELS)
def config(request: pytest.FixtureRequest) -> DecoderConfig:
    return DecoderConfig.from_hf(MODELS[request.param])


def pages_of(config: DecoderConfig, dtype: str) -> Any:
    return allocate(config, num_pages=8, kv_dtype=dtype, dtype=dtype, device=CPU)


class Operations(TorchDispatchMode):
    """Names of torch's operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def prompts(lengths: tuple[int, ...]) -> tuple[torch.Tensor, AttentionMeta]:
    """Whole ones, in the pages of `PAGES`."""
    tables = torch.tensor(PAGES[: len(lengths)], dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    owners = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    slots = tables[owners, positions // PAGE_TOKENS].long() * PAGE_TOKENS + positions % PAGE_TOKENS
    return (owners * 31 + positions * 7) % 96, AttentionMeta(lengths, lengths, positions, slots, tables)


@torch.inference_mode()
def test_tokens_are_those_of_the_reference(config: DecoderConfig) -> None:
    """In float32, where nothing but an error could turn one: prompts, then steps in which one row is padding."""
    decoder = in_float32(random_decoder(config, CPU))
    weights = card_weights(config, decoder.parameters, decoder.ropes)
    caches = [pages_of(config, "float32") for _ in range(2)]
    tokens, meta = prompts(LENGTHS)
    ends = torch.tensor(LENGTHS).cumsum(0) - 1
    card = PromptPass(weights, decoder.rows)
    found, expected = card.hidden(tokens, caches[0], meta), decoder.forward(tokens, caches[1], meta)
    assert error(found, expected) < 1e-4
    first = card.logits(found[ends]).argmax(-1).tolist()
    assert first == decoder.logits(expected[ends]).argmax(-1).tolist()

    answers = []
    for step in (FusedStep(weights, caches[0]), PlainStep(decoder, caches[1])):
        loop = DecodeLoop(step, CPU, max_rows=4, max_pages=2)
        rows = [
            DecodeRow(token=token, position=length, pages=own)
            for token, length, own in zip(first, LENGTHS, PAGES, strict=True)
        ]
        answers.append([loop.launch(rows).tokens(), loop.follow(PAGES).tokens()])
    assert answers[0] == answers[1]


@torch.inference_mode()
def test_logits_of_a_step_in_bfloat16(config: DecoderConfig) -> None:
    """They wait for nothing whose size the card decides, as the reference does: else no graph could hold a step."""
    assert why_not(config, "bfloat16") is None
    decoder = random_decoder(config, CPU)
    weights = card_weights(config, decoder.parameters, decoder.ropes)
    fused, plain = FusedStep(weights, pages_of(config, "bfloat16")), PlainStep(decoder, pages_of(config, "bfloat16"))
    table = torch.tensor(PAGES, dtype=torch.int32)
    tokens, positions = torch.tensor([7, 90, 5]), torch.tensor([0, 0, -1])
    logits, seen = [], []
    for step in (fused, plain):
        with Operations() as operations:
            slots = step.slots(positions, table)
            logits.append(step.logits(tokens, positions, slots, table, together=False)[:2])
        seen.append(operations.names & WAITING)
    assert error(*logits) < 0.03
    assert not seen[0]
    assert seen[1] >= {"nonzero", "bincount"}


@torch.inference_mode()
def test_a_row_has_its_own_bits_in_steps_and_prompts(config: DecoderConfig) -> None:
    decoder = random_decoder(config, CPU)
    weights = card_weights(config, decoder.parameters, decoder.ropes)
    step = FusedStep(weights, pages_of(config, "bfloat16"))
    table, positions = torch.tensor(PAGES, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)
    tokens = torch.tensor([7, 90, 5])
    whole = step.logits(tokens, positions, step.slots(positions, table), table, together=False)
    own = slice(1, 2)
    slots = step.slots(positions[own], table[own])
    alone = step.logits(tokens[own], positions[own], slots, table[own].contiguous(), together=False)
    assert torch.equal(alone[0], whole[1])

    card = PromptPass(weights, decoder.rows)
    (tokens, meta), (_, short) = prompts(LENGTHS), prompts(LENGTHS[:1])
    whole = card.hidden(tokens, pages_of(config, "bfloat16"), meta)
    alone = card.hidden(tokens[: LENGTHS[0]], pages_of(config, "bfloat16"), short)
    assert torch.equal(alone, whole[: LENGTHS[0]])


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_bytes_are_those_that_are_booked(config: DecoderConfig, quantize: Any) -> None:
    decoder = random_decoder(config, CPU)
    weights = card_weights(config, decoder.parameters, decoder.ropes, quantize)
    resident = {tensor.data_ptr(): tensor.nbytes for tensor in tensors(weights)}
    assert card_weight_bytes(config, quantize) == sum(resident.values())


def tensors(part: Any) -> Iterator[torch.Tensor]:
    """All of a card's weights."""
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from tensors(each)
    elif hasattr(part, "__dataclass_fields__") and not isinstance(part, DecoderConfig):
        for field in fields(part):
            yield from tensors(getattr(part, field.name))


def test_only_what_a_library_multiplies_with_is_measured(config: DecoderConfig) -> None:
    decoder = random_decoder(config, CPU)
    weights: CardWeights = card_weights(config, decoder.parameters, decoder.ropes)
    experts = config.experts
    assert experts is not None
    shapes = {tuple(matrix.codes.shape) for matrix in weights.matrices()}
    assert (experts.count, config.hidden_size) in shapes
    assert (experts.count * 2 * experts.ffn_size, config.hidden_size) not in shapes


def test_the_tuner_steps_through_experts_too() -> None:
    """A layer with them and one without; where one token was turned, the others judge."""
    whole = WholeStep(DecoderConfig.from_hf(MODELS["qwen3_moe"]), torch.float16, "float16", "none", CPU, 48)
    assert [layer.mixture is not None for layer in whole._weights.layers] == [False, True]
    with torch.inference_mode():
        (step,) = whole.calls(DEFAULT_PLAN, 1)
        logits = step()
    assert isinstance(logits, torch.Tensor)
    assert logits.isfinite().all()
    assert whole._judged([0.01, 0.5, 0.02]) == 0.02
    assert math.isnan(whole._judged([0.01, math.nan, 0.02]))
