"""The acceptance lines of cloud, each at a small count. Line 1 makes an environment: it runs on demand only."""

from __future__ import annotations

import pytest

from scripts.accept import find_lines
from tests.accept.small import check_small

LINES = [module for number, module in find_lines("cloud") if number != 1]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("module", LINES)
def test_line_passes_at_a_small_count(module: str) -> None:
    check_small(module)
