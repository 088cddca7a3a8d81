"""The acceptance lines of speed, each at a small count: that they run and that what they measure is right, not how fast it is."""

from __future__ import annotations

import pytest

from scripts.accept import find_lines
from tests.accept.small import check_small

LINES = [module for _, module in find_lines("fast")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("module", LINES)
def test_line_passes_at_a_small_count(module: str) -> None:
    check_small(module)
