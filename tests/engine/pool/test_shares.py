"""What callers have had of a device over all its engines."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edgewise.core.priority import Priority
from edgewise.engine.encoders.request import EncodeStats
from edgewise.engine.pool.shares import DeviceShares, Share
from edgewise.engine.request import RequestStats

CHAT = Priority.INTERACTIVE


def part(seconds: float) -> EncodeStats:
    return EncodeStats(queued_s=0.0, compute_s=9.0, batch=2, device_s=seconds)


def text(seconds: float) -> RequestStats:
    return RequestStats(
        prompt_tokens=1, cached_tokens=0, completion_tokens=1, queued_s=0, prefill_s=0, decode_s=0, device_s=seconds
    )


def test_a_flood_in_one_engine_is_a_lead_in_the_others() -> None:
    shares = DeviceShares()
    flood, other = shares.begin(CHAT, "a"), shares.begin(CHAT, "b")
    flood.told(part(3.0))
    flood.told(part(2.0))
    other.told(text(1.0))
    assert shares.begin(CHAT, "a").lead_s == 4.0
    assert shares.begin(CHAT, "b").lead_s == 0.0


def test_accounts_of_texts_are_of_all_so_far_and_those_of_parts_are_not() -> None:
    shares = DeviceShares()
    share, _ = shares.begin(CHAT, "a"), shares.begin(CHAT, "b")
    share.told(text(1.0))
    share.told(text(3.0))
    share.told(None)
    assert shares.begin(CHAT, "a").lead_s == 3.0


def test_time_that_nobody_else_wanted_is_no_debt() -> None:
    shares = DeviceShares()
    alone = shares.begin(CHAT, "a")
    alone.told(part(100.0))
    newcomer = shares.begin(CHAT, "b")
    assert newcomer.lead_s == 0.0
    assert shares.begin(CHAT, "a").lead_s == 0.0


def test_classes_are_apart() -> None:
    shares = DeviceShares()
    shares.begin(CHAT, "b")
    shares.begin(CHAT, "a").told(part(100.0))
    shares.begin(Priority.BULK, "b")
    assert shares.begin(Priority.BULK, "a").lead_s == 0.0


class Callers(RuleBasedStateMachine):
    """Requests come, are accounted for and end, twice at times; nobody is in debt for what nobody else wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = DeviceShares()
        self.open: list[tuple[str, Share]] = []

    @rule(key=st.sampled_from("abc"))
    def begin(self, key: str) -> None:
        self.open.append((key, self.shares.begin(CHAT, key)))

    @rule(at=st.integers(0, 9), seconds=st.floats(0, 100))
    def tell(self, at: int, seconds: float) -> None:
        if self.open:
            self.open[at % len(self.open)][1].told(part(seconds))

    @rule(at=st.integers(0, 9), again=st.booleans())
    def end(self, at: int, again: bool) -> None:
        if self.open:
            _, share = self.open.pop(at % len(self.open))
            share.close()
            if again:
                share.close()

    @invariant()
    def somebody_at_work_has_no_lead(self) -> None:
        keys = {key for key, _ in self.open}
        if keys:
            leads = [self.shares.begin(CHAT, key) for key in sorted(keys)]
            assert min(one.lead_s for one in leads) == 0.0
            assert all(one.lead_s >= 0.0 for one in leads)
            for one in leads:
                one.close()


TestCallers = Callers.TestCase
