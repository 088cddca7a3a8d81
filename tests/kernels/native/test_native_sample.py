"""The native sampler draws the reference's tokens, whatever filters there are."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.kernels.sample import Draw, RowControls, sample

VOCABS = [7, 97, 1500, 5000]


def logits_of(seed: int, vocab: int, spread: float = 3.0, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def both(logits: torch.Tensor, control: RowControls) -> tuple[Draw, Draw]:
    controls = [control] * len(logits)
    return sample(logits, controls, "native")[0], sample(logits, controls, "reference")[0]


@st.composite
def controls(draw: st.DrawFn, vocab: int) -> RowControls:
    chance = random.Random(draw(st.integers(0, 2**32)))
    ids = chance.sample(range(vocab), vocab // 3)
    some = draw(st.sets(st.sampled_from(["repetition", "counts", "bias", "banned", "allowed", "group"])))
    control = RowControls(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])),
        top_k=draw(st.sampled_from([0, 0, 1, 3, 40, 1024, 1025, vocab - 1, vocab, 10**7])),
        top_p=draw(st.sampled_from([1.0, 0.999, 0.9, 0.5, 1e-9])),
        min_p=draw(st.sampled_from([0.0, 0.02, 0.5])),
        uniform=draw(st.floats(0.0, 1.0, exclude_max=True)),
    )
    if "repetition" in some:
        control = replace(control, repetition_penalty=draw(st.sampled_from([0.7, 1.3])), seen=ids + ids[:3])
    if "counts" in some:
        counts = {token: chance.randint(1, 9) for token in ids}
        control = replace(control, presence_penalty=0.4, frequency_penalty=-0.2, counts=counts)
    if "bias" in some:
        control = replace(control, bias={token: chance.uniform(-100, 100) for token in ids[:9]})
    if "banned" in some:
        control = replace(control, banned=ids[::2])
    if "allowed" in some:
        size = draw(st.sampled_from([0, 1, vocab // 16, -(-vocab // 8)]))
        control = replace(control, allowed=chance.randbytes(size) if draw(st.booleans()) else b"\xff" * size)
    if "group" in some:
        control = replace(control, group_from=draw(st.integers(1, vocab - 1)))
    return control


@settings(max_examples=400, deadline=None)
@given(st.data(), st.integers(0, 10_000), st.sampled_from(VOCABS), st.sampled_from([0.1, 3.0, 20.0]))
def test_tokens_are_those_of_the_reference(data: st.DataObject, seed: int, vocab: int, spread: float) -> None:
    control = data.draw(controls(vocab))
    native, reference = both(logits_of(seed, vocab, spread), control)
    assert native == reference


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000), st.floats(0.0, 1.0, exclude_max=True), st.sampled_from([0, 40]), st.sampled_from([1.0, 0.9])
)
def test_equal_logits_are_ordered_by_their_ids(seed: int, uniform: float, top_k: int, top_p: float) -> None:
    row = logits_of(seed, 400).round()
    native, reference = both(row, RowControls(temperature=1.0, top_k=top_k, top_p=top_p, uniform=uniform))
    assert native == reference


@pytest.mark.parametrize("temperature", [0.7, 5.0])
def test_a_whole_vocabulary(temperature: float) -> None:
    row = logits_of(1, 49_152)
    for step in range(40):
        for top_k, top_p, min_p in ((0, 1.0, 0.0), (0, 0.9, 0.0), (40, 0.9, 0.0), (0, 1.0, 0.05), (2000, 0.95, 0.01)):
            control = RowControls(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=step / 40)
            native, reference = both(row, control)
            assert native == reference


def test_draws_follow_the_distribution() -> None:
    """The share of a token is its probability, by counting at evenly spaced numbers."""
    row = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    drawn = [
        sample(row, [RowControls(temperature=1.0, uniform=(i + 0.5) / 2000)], "native")[0].token for i in range(2000)
    ]
    for token, p in enumerate(row[0].softmax(0).tolist()):
        assert abs(drawn.count(token) / 2000 - p) < 0.002
    assert drawn == sorted(drawn)


def test_edges() -> None:
    row = torch.tensor([[0.0, -math.inf, 3.0, -math.inf]])
    for uniform in (0.0, 0.9999999999999999):
        native, reference = both(row, RowControls(temperature=1.0, uniform=uniform))
        assert native == reference
        assert native.token in (0, 2)
    assert sample(row, [RowControls(allowed=b"\x0a")], "native")[0].stuck
    assert sample(row, [RowControls(temperature=1.0, allowed=b"")], "native")[0].stuck
    broken = sample(torch.tensor([[0.0, math.nan]]), [RowControls(temperature=1.0)], "native")[0]
    assert broken.broken
    for wrong in (RowControls(banned=[4]), RowControls(bias={-1: 1.0}), RowControls(repetition_penalty=2.0, seen=[9])):
        with pytest.raises(ValueError, match="ids must be 0 to 3"):
            sample(row, [wrong], "native")


def test_the_path_of_a_processor_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    row, control = logits_of(3, 97), RowControls(temperature=0.8, top_p=0.9, uniform=0.3)
    expected = sample(row, [control], "reference")
    monkeypatch.setattr("edgewise.kernels.native.library.why_not", lambda: "none")
    monkeypatch.setattr("edgewise.kernels.native.sample.draw", lambda *_: pytest.fail("no library, yet asked"))
    assert sample(row, [control]) == expected
