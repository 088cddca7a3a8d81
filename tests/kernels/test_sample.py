"""The sampler against a slow, obvious one, and its promises: independence of rows, order of filters, exact edges."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.kernels.sample import RowControls, greedy, sample

VOCAB = 97


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def kept_by_oracle(
    row: torch.Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Token -> probability after the filters, by sorting everything in plain Python."""
    scaled = [value / temperature for value in row.tolist()]
    ranked = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if top_k:
        ranked = ranked[:top_k]
    highest = scaled[ranked[0]]
    weight = {token: math.exp(scaled[token] - highest) for token in ranked}
    total = sum(weight.values())
    mass, nucleus = 0.0, []
    for token in ranked:
        if mass >= top_p:
            break
        nucleus.append(token)
        mass += weight[token] / total
    final = {token: weight[token] for token in nucleus if weight[token] >= min_p}
    return {token: value / sum(final.values()) for token, value in final.items()}


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(0.2, 3.0),
    st.sampled_from([0, 1, 2, 10, 96, 97, 9_999_999]),
    st.floats(0.05, 1.0),
    st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    st.floats(0.0, 0.999999),
)
def test_equals_the_oracle(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> None:
    row = logits_of(seed)
    control = RowControls(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=uniform)
    token = sample(row, [control])[0].token
    kept = kept_by_oracle(row[0].double(), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    below = sum(p for other, p in kept.items() if other < token)
    assert token in kept
    assert below - 1e-9 <= uniform <= below + kept[token] + 1e-9


def test_greedy_takes_the_largest_and_on_a_tie_the_lowest_id() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, [40, 7, 63]] = 5.0
    assert sample(row, [RowControls()])[0].token == 7
    assert sample(row, [RowControls(bias={50: 1.0})])[0].token == 7


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = logits_of(3, rows=16)
    controls = [RowControls(temperature=0.9, top_p=0.9, uniform=i / 16, top_logprobs=2) for i in range(16)]
    together = sample(rows, controls)
    assert together == [sample(rows[i : i + 1], [controls[i]])[0] for i in range(16)]


def test_penalties_follow_their_definitions() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, 5], row[0, 6], row[0, 9] = 4.0, 3.0, -1.0
    assert sample(row, [RowControls(repetition_penalty=2.0, seen=[5, 5])])[0].token == 6
    assert sample(row, [RowControls(presence_penalty=1.5, counts={5: 1})])[0].token == 6
    assert sample(row, [RowControls(frequency_penalty=0.4, counts={5: 2})])[0].token == 5
    assert sample(row, [RowControls(frequency_penalty=0.4, counts={5: 3})])[0].token == 6
    # a negative logit is multiplied, so that a penalty always makes it less likely
    deep = torch.full((1, VOCAB), -3.0)
    deep[0, 9] = -1.0
    assert sample(deep, [RowControls(repetition_penalty=4.0, seen=[9])])[0].token == 0


def test_banned_tokens_are_never_drawn() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, 5] = 50.0
    assert sample(row, [RowControls(banned=[5])])[0].token == 0
    for step in range(20):
        control = RowControls(temperature=1.0, uniform=step / 20, banned=[5])
        assert sample(row, [control])[0].token != 5


def test_log_probabilities_are_those_of_the_model() -> None:
    row = logits_of(11)
    draw = sample(row, [RowControls(temperature=0.5, uniform=0.3, top_k=3, top_logprobs=4)])[0]
    reference = row[0].double().log_softmax(0)
    assert draw.logprob == pytest.approx(float(reference[draw.token]), abs=1e-12)
    assert [token for token, _ in draw.top] == reference.topk(4).indices.tolist()
    assert sample(row, [RowControls(top_logprobs=0)])[0].top == ()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_broken_row_is_reported_and_spares_the_others(poison: float) -> None:
    rows = logits_of(1, rows=2)
    rows[0, 3] = poison
    broken, fine = sample(rows, [RowControls(), RowControls()])
    assert broken.broken
    assert broken.token == -1
    assert not fine.broken


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[rows, vocab\] float32"):
        sample(torch.zeros(VOCAB), [RowControls()])
    with pytest.raises(ValueError, match="2 rows of logits for 1"):
        sample(torch.zeros(2, VOCAB), [RowControls()])


def bits(count: int, *ids: int) -> bytes:
    """One bit per id, as `RowControls.allowed` has them."""
    packed = bytearray(-(-count // 8))
    for id in ids:
        packed[id >> 3] |= 1 << (id & 7)
    return bytes(packed)


@pytest.mark.parametrize("controls", [RowControls(), RowControls(temperature=1.0, uniform=0.5, top_k=3, top_p=0.9)])
def test_only_allowed_ids_are_drawn_and_log_probabilities_stay(controls: RowControls) -> None:
    logits = torch.randn(1, 77, generator=torch.Generator().manual_seed(1))
    worst = int(logits.argmin())
    held = replace(controls, allowed=bits(77, worst), top_logprobs=2)
    (draw,) = sample(logits, [held])
    (free,) = sample(logits, [replace(controls, top_logprobs=2)])
    assert draw.token == worst
    assert draw.top == free.top
    assert draw.logprob == pytest.approx(float(logits[0].double().log_softmax(0)[worst]))


def test_ids_beyond_the_mask_are_not_allowed() -> None:
    logits = torch.zeros(1, 40)
    logits[0, 39] = 9.0
    assert sample(logits, [RowControls(allowed=bits(16, 5))])[0].token == 5


def test_a_row_that_allows_nothing_is_stuck() -> None:
    logits = torch.zeros(1, 40)
    for allowed in (b"", bytes(5)):
        for temperature in (0.0, 1.0):
            (draw,) = sample(logits, [RowControls(allowed=allowed, temperature=temperature)])
            assert (draw.token, draw.stuck, draw.broken) == (-1, True, False)


def test_bans_are_void_where_nothing_else_is_allowed() -> None:
    logits = torch.zeros(1, 40)
    assert sample(logits, [RowControls(allowed=bits(40, 7), banned=(7,))])[0].token == 7
    assert sample(logits, [RowControls(allowed=bits(40, 7, 9), banned=(7,))])[0].token == 9


def test_rows_without_a_mask_keep_their_draws_beside_one_with() -> None:
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(2))
    free = RowControls(temperature=1.0, uniform=0.25)
    alone = sample(logits[1:], [free])[0]
    assert sample(logits, [RowControls(allowed=bits(300, 4)), free])[1] == alone


def within(smallest: float, largest: float) -> st.SearchStrategy[float]:
    return st.floats(smallest, largest, allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(
    temperature=within(0.0, 100.0),
    top_p=within(1e-9, 1.0),
    min_p=within(0.0, 0.999),
    repetition=within(0.01, 100.0),
    presence=within(-2.0, 2.0),
    frequency=within(-2.0, 2.0),
    uniform=within(0.0, 0.999),
    seed=st.integers(0, 5),
)
def test_every_value_that_a_request_may_have_draws_a_token(
    temperature: float,
    top_p: float,
    min_p: float,
    repetition: float,
    presence: float,
    frequency: float,
    uniform: float,
    seed: int,
) -> None:
    control = RowControls(
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        seen=range(40),
        presence_penalty=presence,
        frequency_penalty=frequency,
        counts={3: 7, 9: 1},
        uniform=uniform,
    )
    assert 0 <= sample(logits_of(seed) * 20, [control])[0].token < VOCAB


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 5), spoiled=st.sampled_from([None, math.nan, math.inf]))
def test_greedy_rows_are_drawn_as_one_by_one(seed: int, rows: int, spoiled: float | None) -> None:
    logits = logits_of(seed, rows).round()  # so that some are equal
    if spoiled is not None:
        logits[0, seed % VOCAB] = spoiled
    assert greedy(logits) == sample(logits, [RowControls()] * rows)
    assert [one.token for one in greedy(logits)][1:] == [
        min((-v, i) for i, v in enumerate(row.tolist()))[1] for row in logits[1:]
    ]
