"""The range of useful memory budgets, held to what `fit` makes of a budget: the service's sum is the engine's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from edgewise.engine.build import _book
from edgewise.engine.fit import MIN_CONTEXT, FitReport, Needs, fit, needs
from edgewise.engine.ledger import SHRINK_MARK
from edgewise.engine.numerics import resolve
from edgewise.kernels.limits import PAGE_TOKENS
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.decoder.cuda.support import loop_bytes
from edgewise.models.tiny import local_files, make_tiny_model

MACHINE = 8 << 30
LIMITS: dict[str, Any] = {"max_context": None, "max_running": 4, "kv_memory_bytes": None}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> DecoderConfig:
    return read_config(local_files(make_tiny_model(tmp_path_factory.mktemp("tiny"), context=4096)))


def sized(network: DecoderConfig, budget: int, **limits: Any) -> FitReport:
    return fit(
        network,
        resolve(device="cpu", dtype="float32", kv_dtype="int8", quantize="auto", cuda=False),
        available=MACHINE,
        memory_fraction=0.5,
        max_step_tokens=64,
        page_tokens=PAGE_TOKENS,
        memory_budget_bytes=budget,
        **{**LIMITS, **limits},
    )


def needed(network: DecoderConfig, budget: int = MACHINE, **limits: Any) -> Needs:
    return needs(sized(network, budget, **limits), **{**LIMITS, **limits})


def test_the_least_holds_exactly_one_whole_context_and_the_most_all_that_can_run(network: DecoderConfig) -> None:
    found = needed(network)
    assert found.context == 4096
    least = sized(network, found.minimal)
    assert (least.fits, least.max_context, least.full_contexts) == (True, 4096, 1.0)
    assert sized(network, found.minimal - 16 * least.kv_per_token * 2).max_context < 4096
    assert sized(network, found.full).full_contexts == 4.0
    assert sized(network, found.full * 2).full_contexts == 4.0


def test_a_context_that_memory_cannot_hold_is_as_long_as_all_memory_allows(network: DecoderConfig) -> None:
    whole = needed(network)
    room = whole.minimal - 1000 * sized(network, MACHINE).kv_per_token
    found = needed(network, room)
    assert found.minimal == room
    assert MIN_CONTEXT <= found.context < 4096
    assert found.context == sized(network, found.minimal).max_context


def test_what_cannot_hold_even_a_short_context_needs_more_than_there_is(network: DecoderConfig) -> None:
    found = needed(network, 1 << 20)
    assert found.minimal > 1 << 20
    assert sized(network, found.minimal).fits
    assert sized(network, found.minimal).max_context >= MIN_CONTEXT


def test_limits_of_the_configuration_count(network: DecoderConfig) -> None:
    assert needed(network, max_context=512).context == 512
    assert needed(network, max_context=512).minimal < needed(network).minimal
    fixed = needed(network, kv_memory_bytes=1 << 20)
    assert fixed.minimal == fixed.full
    assert sized(network, fixed.minimal, kv_memory_bytes=1 << 20).fits


def test_a_budget_is_never_more_than_is_available(network: DecoderConfig) -> None:
    assert sized(network, MACHINE * 2).budget == MACHINE


def test_what_the_loop_on_a_card_keeps_is_part_of_the_sum_and_is_booked(network: DecoderConfig) -> None:
    plain = resolve(device="cpu", dtype="float32", kv_dtype="int8", quantize="none", cuda=False)
    card = replace(plain, device="cuda", dtype="bfloat16", kernels="triton")

    def on_card(budget: int) -> FitReport:
        sizes = {"memory_fraction": 0.5, "max_step_tokens": 64, "page_tokens": PAGE_TOKENS}
        return fit(network, card, available=MACHINE, memory_budget_bytes=budget, **{**LIMITS, **sizes})

    report = on_card(MACHINE)
    assert report.graphs == loop_bytes(network, LIMITS["max_running"], 4096)
    least = on_card(needs(report, **LIMITS).minimal)
    assert (least.fits, least.full_contexts) == (True, 1.0)
    booked = _book(least, torch.device("cpu")).report().booked
    assert booked["graphs"] == report.graphs
    assert sum(booked.values()) <= SHRINK_MARK * least.budget
    assert not on_card(report.graphs).fits
    assert any(line.startswith("graphs") for line in report.explain())
