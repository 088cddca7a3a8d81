"""Gaussian noise: the same words as the scalar generator, the right moments, prefixes and streams."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.kernels.noise import normal, philox_words
from edgewise.kernels.philox import philox4x32


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, 0x0123456789ABCDEF])
@pytest.mark.parametrize(("first", "stream"), [(0, 0), (2**32 - 2, 7), (5, 2**40 + 3)])
def test_the_words_are_those_of_the_scalar_generator(seed: int, first: int, stream: int) -> None:
    words = philox_words(first, 4, stream, seed)
    for place in range(4):
        counter = ((first + place) & 0xFFFFFFFF, (first + place) >> 32, stream & 0xFFFFFFFF, stream >> 32)
        expected = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
        assert tuple(int(word[place]) for word in words) == expected


def test_moments_of_a_standard_normal() -> None:
    drawn = normal(3, 200_001).astype(np.float64)
    assert drawn.shape == (200_001,)
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.var() - 1) < 0.02
    assert abs((drawn**4).mean() - 3) < 0.1
    assert np.isfinite(drawn).all()


def test_more_has_the_same_beginning_and_streams_differ() -> None:
    assert np.array_equal(normal(9, 1000)[:101], normal(9, 101))
    assert not np.array_equal(normal(9, 100), normal(9, 100, stream=1))
    assert abs(np.corrcoef(normal(9, 50_000), normal(9, 50_000, stream=1))[0, 1]) < 0.02
