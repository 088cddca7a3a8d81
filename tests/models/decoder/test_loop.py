"""The decoding loop over the reference's functions: rows go on by themselves, in any bucket, with pages that come later."""

from __future__ import annotations

import pytest
import torch

from edgewise.engine.kv_cache import allocate
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.kernels.philox import uniform
from edgewise.kernels.sample import RowControls, sample
from edgewise.models.decoder.cuda.loop import DecodeLoop, page_buckets, row_buckets
from edgewise.models.decoder.cuda.plain import PlainStep
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.rows import DecodeRow
from edgewise.models.files import ModelFiles
from tests.models.decoder.driver import load

CPU = torch.device("cpu")
STEPS = 40
HEAT = 0.9


@pytest.fixture(scope="module")
def decoder(tiny_model: ModelFiles) -> Decoder:
    loaded = load(tiny_model, torch.float32)
    assert loaded.prove_rows()
    return loaded


def one_by_one(decoder: Decoder, first: int, pages: list[int], heat: float, seed: int) -> list[int]:
    """A sequence that begins with the token `first`, decoded alone by the reference."""
    kv = cache(decoder)
    tokens = [first]
    for position in range(STEPS):
        meta = AttentionMeta(
            query_lens=(1,),
            context_lens=(position + 1,),
            positions=torch.tensor([position]),
            slots=torch.tensor([pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS]),
            block_tables=torch.tensor([pages], dtype=torch.int32),
        )
        logits = decoder.logits(decoder.forward(torch.tensor(tokens[-1:]), kv, meta))
        number = uniform(seed, position) if heat else 0.0
        tokens.append(sample(logits, [RowControls(temperature=heat, uniform=number)])[0].token)
    return tokens[1:]


def cache(decoder: Decoder) -> list[KVLayer]:
    return allocate(decoder.config, num_pages=40, kv_dtype="float32", dtype="float32", device=CPU)


def rows(count: int, held: int) -> list[DecodeRow]:
    """Rows of which every other one is drawn by chance, each with `held` pages of its own."""
    return [
        DecodeRow(
            token=10 + row,
            position=0,
            pages=list(range(row * 4, row * 4 + held)),
            temperature=HEAT if row % 2 else 0.0,
            seed=2**64 - 1 - row,
        )
        for row in range(count)
    ]


@pytest.mark.parametrize("count", [1, 3, 5])
def test_rows_go_on_by_themselves_as_the_reference_would(decoder: Decoder, count: int) -> None:
    loop = DecodeLoop(PlainStep(decoder, cache(decoder)), CPU, max_rows=8, max_pages=4)
    pages = [list(range(row * 4, row * 4 + 4)) for row in range(count)]
    flight = loop.launch(rows(count, 1))
    found = [flight.tokens()]
    for step in range(1, STEPS):
        held = 1 + step // PAGE_TOKENS
        flight = loop.follow([own[:held] for own in pages])
        found.append(flight.tokens())
    expected = [
        one_by_one(decoder, 10 + row, pages[row], HEAT if row % 2 else 0.0, 2**64 - 1 - row) for row in range(count)
    ]
    assert [list(column) for column in zip(*found, strict=True)] == expected


def test_tokens_are_read_after_the_next_step_has_been_launched(decoder: Decoder) -> None:
    loop = DecodeLoop(PlainStep(decoder, cache(decoder)), CPU, max_rows=2, max_pages=4)
    first = loop.launch(rows(2, 4))
    second = loop.follow([row.pages for row in rows(2, 4)])
    third = loop.follow([row.pages for row in rows(2, 4)])
    late = [second.tokens(), third.tokens()]
    del first
    loop = DecodeLoop(PlainStep(decoder, cache(decoder)), CPU, max_rows=2, max_pages=4)
    loop.launch(rows(2, 4)).tokens()
    assert late == [loop.follow([row.pages for row in rows(2, 4)]).tokens() for _ in range(2)]


def test_a_step_with_broken_logits_says_so_and_the_others_go_on(decoder: Decoder) -> None:
    kv = cache(decoder)
    loop = DecodeLoop(PlainStep(decoder, kv), CPU, max_rows=2, max_pages=4)
    loop.launch(rows(2, 4))
    kv[0].v[0, :, 0] = float("nan")  # the first token of row 0
    flight = loop.follow([row.pages for row in rows(2, 4)])
    again = loop.follow([row.pages for row in rows(2, 4)])
    assert flight.tokens()[0] == again.tokens()[0] == -1
    assert min(flight.tokens()[1], again.tokens()[1]) >= 0


def test_rows_may_be_successive_tokens_of_one_sequence(decoder: Decoder) -> None:
    pages = list(range(4))
    told = [10, *one_by_one(decoder, 10, pages, 0.0, 0)]
    loop = DecodeLoop(PlainStep(decoder, cache(decoder)), CPU, max_rows=32, max_pages=4)
    known = [DecodeRow(token=token, position=position, pages=pages) for position, token in enumerate(told[:20])]
    assert loop.launch(known).tokens() == told[1:21]


def test_more_rows_than_the_loop_has_are_refused(decoder: Decoder) -> None:
    loop = DecodeLoop(PlainStep(decoder, cache(decoder)), CPU, max_rows=2, max_pages=4)
    with pytest.raises(ValueError, match="1 to 2 rows"):
        loop.launch(rows(3, 1))
    loop.launch(rows(2, 1))
    with pytest.raises(ValueError, match="2 rows are on the device"):
        loop.follow([[0]])


def test_buckets_cover_every_size_and_end_at_the_largest() -> None:
    for most in (1, 5, 32, 33, 64, 65, 200, 500):
        sizes = row_buckets(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] >= most
        assert len(sizes) < 2 or sizes[-2] < most
    assert page_buckets(1) == [1]
    assert page_buckets(16) == [16]
    assert page_buckets(2500) == [16, 64, 256, 1024, 2500]
