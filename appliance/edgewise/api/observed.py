"""Questions to engines about themselves, which no page may wait for long."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from edgewise.core.errors import EngineUnavailable
from edgewise.core.patience import within

ANSWER_S: Final = 2.0
Told = TypeVar("Told")


async def in_time(question: Awaitable[Told]) -> Told:
    """What an engine tells. Raises `EngineUnavailable` when it has not within `ANSWER_S`, or what the question raises."""
    return await within(
        question, ANSWER_S, lambda: EngineUnavailable(f"the engine did not answer within {ANSWER_S:g} s")
    )
