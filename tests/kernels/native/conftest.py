"""Tests of the native kernels run on every instruction set that this processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgewise.kernels.native import library

NAMES = ("avx512-vnni", "avx2", "neon-i8mm", "neon-dotprod", "generic")


def usable() -> list[str]:
    """Of this processor; empty where there is no library."""
    if library.why_not() is not None:
        return []
    found, chosen = [], library.isa()
    for name in NAMES:
        try:
            library.use_isa(name)
        except ValueError:
            continue
        found.append(name)
    library.use_isa(chosen)
    return found


@pytest.fixture
def isas() -> Iterator[list[str]]:
    """Names for `library.use_isa`, the most general last; what was in use before is in use again afterwards."""
    reason = library.why_not()
    assert reason is None, reason
    chosen = library.isa()
    yield usable()
    library.use_isa(chosen)
