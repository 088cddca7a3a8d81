from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from edgewise.pipeline.seeds import MAX_SEED, draw_seed, normalize_seed, sequence_seed


def test_the_first_sequence_has_the_requests_seed() -> None:
    assert sequence_seed(7, 0) == 7


def test_the_others_follow_the_documented_hash() -> None:
    digest = hashlib.sha256(b"edgewise-seed:7:2").digest()
    assert sequence_seed(7, 2) == int.from_bytes(digest[:8], "big")


@given(st.integers(-(2**63), MAX_SEED))
def test_signed_seeds_keep_their_bits(seed: int) -> None:
    normal = normalize_seed(seed)
    assert 0 <= normal <= MAX_SEED
    assert (normal - seed) % 2**64 == 0


def test_drawn_seeds_are_exact_in_every_json_reader() -> None:
    seeds = {draw_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(int(float(seed)) == seed for seed in seeds)
