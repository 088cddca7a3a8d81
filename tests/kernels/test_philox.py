"""Known answers of Philox4x32-10 and the numbers drawn from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.kernels.philox import philox4x32, uniform

# Published test vectors of the Random123 distribution: counter, key, result.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == expected


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_uniform_is_in_range_and_a_pure_function(seed: int, position: int) -> None:
    value = uniform(seed, position)
    assert 0.0 <= value < 1.0
    assert value == uniform(seed, position)


def test_positions_and_seeds_give_different_numbers() -> None:
    numbers = {uniform(seed, position) for seed in (0, 1, 2**32, 2**63) for position in range(200)}
    assert len(numbers) == 800
    assert 0.45 < sum(numbers) / len(numbers) < 0.55
