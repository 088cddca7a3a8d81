"""What may cross the link and what cloud work may cost, by day (UTC). Spending is counted from the stored plans and receipts, so
that a restart forgets nothing; what runs counts with what it may cost (`Prediction.budget_bytes`, `budget_price`)."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.core.clock import Clock
from edgewise.core.errors import StorageError
from edgewise.core.log import get_logger
from edgewise.pipeline.plan import Prediction
from edgewise.pipeline.receipt_store import DAY_S, ReceiptStore

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Left:
    """What of today's budget is left; None where there is no limit. Negative where it was overdrawn."""

    bytes: int | None = None
    price: float | None = None

    def less(self, predicted: Prediction | None) -> Left:
        """After a stage that may cost so much."""
        if predicted is None:
            return self
        return Left(
            None if self.bytes is None else self.bytes - predicted.budget_bytes,
            None if self.price is None else self.price - predicted.budget_price,
        )


NOTHING_LIMITED = Left()
NOTHING_LEFT = Left(-1, -1.0)


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

    @property
    def limited(self) -> bool:
        return self._bytes is not None or self._price is not None

    async def left(self) -> Left:
        """Nothing, where it is not known what was spent: a budget is kept in doubt too."""
        if not self.limited:
            return NOTHING_LIMITED
        now = self._clock.time()
        try:
            spent = await self._store.spent(now - now % DAY_S)
        except StorageError as error:
            log.warning("budget_unknown", reason=error.message)
            return NOTHING_LEFT
        return Left(
            None if self._bytes is None else self._bytes - spent.bytes,
            None if self._price is None else self._price - spent.price,
        )
