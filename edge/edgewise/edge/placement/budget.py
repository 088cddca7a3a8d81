"""What may cross the link and what cloud work may cost, by day (UTC). Spending is counted from the stored plans and receipts, so
that a restart forgets nothing; what runs counts as predicted."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.core.clock import Clock
from edgewise.pipeline.plan import Prediction
from edgewise.pipeline.receipt_store import DAY_S, ReceiptStore


@dataclass(frozen=True, slots=True)
class Left:
    """What of today's budget is left; None where there is no limit. Negative where it was overdrawn."""

    bytes: int | None = None
    price: float | None = None

    def less(self, predicted: Prediction | None) -> Left:
        """After a stage that is expected to cost so much."""
        if predicted is None:
            return self
        return Left(
            None if self.bytes is None else self.bytes - predicted.up_bytes - predicted.down_bytes,
            None if self.price is None else self.price - predicted.price,
        )


NOTHING_LIMITED = Left()


class Budget:
    """Args:
    daily_bytes, daily_price: The limits; None for none.
    """

    def __init__(
        self, store: ReceiptStore, *, daily_bytes: int | None, daily_price: float | None, clock: Clock
    ) -> None:
        self._store = store
        self._bytes = daily_bytes
        self._price = daily_price
        self._clock = clock

    async def left(self) -> Left:
        if self._bytes is None and self._price is None:
            return Left()
        now = self._clock.time()
        spent = await self._store.spent(now - now % DAY_S)
        return Left(
            None if self._bytes is None else self._bytes - spent.bytes,
            None if self._price is None else self._price - spent.price,
        )
