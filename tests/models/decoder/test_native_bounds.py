"""What lies outside pages, tables and vocabulary is refused before anything is read or written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.kernels.attention import paged_attention
from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.native import library
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.models.decoder.native.loading import load_native
from edgewise.models.decoder.native.model import NativeDecoder
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model

PAGES, GUARD = 6, 3  # pages of the cache, and of memory before and after it that nobody may touch
WIDTH = 3
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeDecoder]:
    files: ModelFiles = local_files(make_tiny_model(tmp_path_factory.mktemp("bounds")))
    library.set_threads(2)
    yield load_native(files, dtype="float32", quantize="int8")
    library.set_threads(1)


class Guarded:
    """Layers of int8 pages between pages of other memory."""

    def __init__(self, decoder: NativeDecoder) -> None:
        config = decoder.config
        shape = (PAGES + 2 * GUARD, config.num_kv_heads, PAGE_TOKENS, config.head_dim)
        self._all = [torch.full(shape, 7, dtype=torch.int8) for _ in range(2 * config.num_layers)]
        self._scales = [torch.full(shape[:3], 0.5) for _ in range(2 * config.num_layers)]
        inside = slice(GUARD, GUARD + PAGES)
        codes, scales = [t[inside] for t in self._all], [t[inside] for t in self._scales]
        self.kv = [KVLayer(*codes[at : at + 2], *scales[at : at + 2]) for at in range(0, len(codes), 2)]

    def untouched_outside(self) -> bool:
        return all(
            bool((t[:GUARD] == value).all() and (t[-GUARD:] == value).all())
            for many, value in ((self._all, 7), (self._scales, 0.5))
            for t in many
        )

    def untouched(self) -> bool:
        return all(bool((t == 7).all()) for t in self._all) and all(bool((t == 0.5).all()) for t in self._scales)


def batch(tables: list[list[int]], starts: list[int], counts: list[int]) -> AttentionMeta:
    at = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
    slots = [
        torch.tensor(table)[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS
        for table, p in zip(tables, at, strict=True)
    ]
    return AttentionMeta(
        query_lens=tuple(counts),
        context_lens=tuple(start + count for start, count in zip(starts, counts, strict=True)),
        positions=torch.cat(at),
        slots=torch.cat(slots),
        block_tables=torch.tensor(tables, dtype=torch.int32),
    )


GOOD = ([[1, 2, 0], [3, 4, 5]], [14, 40], [5, 1])
TOKENS = torch.tensor([5, 6, 7, 8, 9, 10])
WRONG = [
    ("slots", 2, PAGES * PAGE_TOKENS, "slots must lie in the cache's 6 pages of 16 tokens, got 96"),
    ("slots", 0, -1, "slots must lie in the cache's 6 pages of 16 tokens, got -1"),
    ("slots", 5, 2**62, "slots must lie"),
    ("block_tables", 1, PAGES, "block_tables must name pages 0 to 5 within a context, got 6"),
    ("block_tables", 3, -(2**31), "block_tables must name pages 0 to 5 within a context, got -2147483648"),
    ("block_tables", 5, 2**31 - 1, "block_tables must name"),
    ("positions", 1, WIDTH * PAGE_TOKENS, "positions must lie in the block table of 3 pages, got 48"),
    ("positions", 5, -1, "positions must lie in the block table of 3 pages, got -1"),
    ("visible", 1, WIDTH * PAGE_TOKENS, "visible must lie in the block table of 3 pages and in the window, got 48"),
    ("visible", 4, -5, "visible must lie in the block table of 3 pages and in the window, got -5"),
    ("tokens", 3, 512, "tokens must be 0 to 511, got 512"),
    ("tokens", 3, -2, "tokens must be 0 to 511, got -2"),
]  # fmt: skip


def wrong(field: str, place: int, value: int) -> tuple[torch.Tensor, AttentionMeta]:
    meta, tokens = batch(*GOOD), TOKENS.clone()
    meta = replace(meta, visible=meta.positions.clone())
    (tokens if field == "tokens" else getattr(meta, field)).view(-1)[place] = value
    return tokens, meta


@pytest.mark.parametrize(("field", "place", "value", "message"), WRONG)
def test_a_wrong_number_is_refused_by_field_and_limit(
    decoder: NativeDecoder, field: str, place: int, value: int, message: str
) -> None:
    cache = Guarded(decoder)
    with pytest.raises(ValueError, match=message):
        decoder.forward(wrong(field, place, value)[0], cache.kv, wrong(field, place, value)[1])
    assert cache.untouched()
    tokens, meta = wrong("tokens", 0, 5)
    assert decoder.forward(tokens, cache.kv, meta).isfinite().all()
    assert cache.untouched_outside()


def test_entries_beyond_a_context_are_nobodys(decoder: NativeDecoder) -> None:
    cache, meta = Guarded(decoder), batch(*GOOD)
    expected = decoder.forward(TOKENS, cache.kv, meta)
    meta.block_tables[0, 2] = 2**30
    assert torch.equal(decoder.forward(TOKENS, Guarded(decoder).kv, meta), expected)


@given(data=st.data())
@SETTINGS
def test_no_table_reaches_outside(decoder: NativeDecoder, data: st.DataObject) -> None:
    """Any numbers in any places: the step is computed within its pages, or refused before the first write."""
    cache, meta, tokens = Guarded(decoder), batch(*GOOD), TOKENS.clone()
    if data.draw(st.booleans()):
        meta = replace(meta, visible=meta.positions.clone())
    fields: list[torch.Tensor] = [tokens, meta.positions, meta.slots, meta.block_tables]
    fields += [] if meta.visible is None else [meta.visible]
    for _ in range(data.draw(st.integers(1, 4))):
        field = data.draw(st.sampled_from(fields))
        near = st.sampled_from([-1, 0, 5, 6, 47, 48, 95, 96, 511, 512])
        most = 2**31 if field.dtype == torch.int32 else 2**63
        value = data.draw(st.one_of(near, st.integers(-most, most - 1)))
        field.view(-1)[data.draw(st.integers(0, field.numel() - 1))] = value
    try:
        out = decoder.forward(tokens, cache.kv, meta)
    except ValueError:
        assert cache.untouched()
    else:
        assert out.shape == (6, decoder.config.hidden_size)
        assert cache.untouched_outside()


@given(data=st.data())
@SETTINGS
def test_no_argument_of_single_operations_reaches_outside(decoder: NativeDecoder, data: st.DataObject) -> None:
    cache, meta = Guarded(decoder), batch(*GOOD)
    kv, heads, head_dim = cache.kv[0], decoder.config.num_kv_heads, decoder.config.head_dim
    k = torch.ones(6, heads, head_dim)
    field = data.draw(st.sampled_from(["slots", "positions", "block_tables"]))
    values: torch.Tensor = getattr(meta, field)
    most = 2**31 if values.dtype == torch.int32 else 2**63
    value = data.draw(st.one_of(st.integers(-2, 100), st.integers(-most, most - 1)))
    values.view(-1)[data.draw(st.integers(0, values.numel() - 1))] = value

    def call() -> None:
        write_kv(kv, k, k, meta.slots, back_end="native")
        out = paged_attention(k, kv, meta, scale=0.1, back_end="native")
        assert out.isfinite().all()

    if field == "slots":
        fine = 0 <= value < PAGES * PAGE_TOKENS
    elif field == "positions":
        fine = 0 <= value < WIDTH * PAGE_TOKENS
    else:
        # the second page past the first sequence's context is looked at by nobody
        fine = int(meta.block_tables[0, 2]) == value or 0 <= value < PAGES
    if not fine:
        with pytest.raises(ValueError, match=field):
            call()
    else:
        call()
    assert cache.untouched_outside()


def test_shapes_and_types_of_a_batch_are_checked(decoder: NativeDecoder) -> None:
    cache, meta = Guarded(decoder), batch(*GOOD)
    changes: list[dict[str, Any]] = [
        {"slots": meta.slots[:-1]},
        {"slots": meta.slots.int()},
        {"positions": meta.positions.repeat_interleave(2)[::2]},
        {"block_tables": meta.block_tables[:1]},
        {"block_tables": meta.block_tables.long()},
        {"visible": meta.positions[:3]},
        {"rope_positions": meta.positions.expand(3, 6)},
    ]
    for change in changes:
        with pytest.raises(ValueError, match=f"{next(iter(change))} must be torch.int"):
            decoder.forward(TOKENS, cache.kv, replace(meta, **change))
    with pytest.raises(ValueError, match="query_lens must be positive"):
        decoder.forward(TOKENS, cache.kv, replace(meta, query_lens=(6, 1)))
    with pytest.raises(ValueError, match=r"hidden must be float32 \[rows, 64\]"):
        decoder.logits(torch.zeros(2, 65))
    assert cache.untouched()


def test_pages_of_another_model_are_refused(decoder: NativeDecoder) -> None:
    shape = (PAGES, decoder.config.num_kv_heads + 1, PAGE_TOKENS, decoder.config.head_dim)
    other = [KVLayer(torch.zeros(shape), torch.zeros(shape)) for _ in range(decoder.config.num_layers)]
    with pytest.raises(ValueError, match="KV heads and head size"):
        decoder.forward(TOKENS, other, batch(*GOOD))
    short = [replace(layer, v=layer.v[:-1]) for layer in Guarded(decoder).kv]
    with pytest.raises(ValueError, match="k and v must be"):
        decoder.forward(TOKENS, short, batch(*GOOD))
