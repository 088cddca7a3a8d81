"""`Planner`: for every stage of a request the places that can run it, what they would take and cost, and the one to take.

A plan is stored before anything is sent, and learned from when its request has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import NoPlace, StorageError
from edgewise.core.log import get_logger
from edgewise.core.privacy import Clearance, Privacy, SiteClearance, clearance_of, site_clearance_of
from edgewise.core.settings_links import PlacementSettings
from edgewise.edge.placement.budget import NOTHING_LIMITED, Budget, Left
from edgewise.edge.placement.choice import Option, Weighed, decide
from edgewise.edge.placement.cost import (
    UNKNOWN_S,
    Strain,
    far_prediction,
    local_prediction,
    margin_of,
    score,
    told_pace,
    traffic_of,
    work_of,
)
from edgewise.edge.placement.gates import Sight, matching, may_try, ruled_out
from edgewise.edge.placement.hysteresis import Stays
from edgewise.edge.placement.learning import Experience
from edgewise.edge.placement.measure import Work
from edgewise.edge.placement.policy import policies_by_name
from edgewise.edge.placement.protocol import Far, Power
from edgewise.pipeline.plan import Decision, Demand, Errand, Outside, Place, Plan
from edgewise.pipeline.receipt_store import ReceiptStore

log = get_logger(__name__)

_LEAVE: Mapping[Place, Callable[[Privacy], Clearance | SiteClearance | None]] = {
    "cloud": clearance_of,
    "peer": site_clearance_of,
}
_HOT_MARGIN_C = 3.0
_LESSONS_EACH = 64
_LESSONS_AMONG = 5_000


class PlacementPlanner:
    """`pipeline.plan.Planner` of a device with a cloud, a peer, or both.

    Args:
        placement: What is configured.
        far: The places elsewhere, with the meters of their links, which whoever sends feeds.
        store: Keeps the plans, and tells what came of them.
        power: The device's own state.
    """

    def __init__(
        self,
        placement: PlacementSettings,
        far: Mapping[Outside, Far],
        store: ReceiptStore,
        *,
        power: Power,
        clock: Clock | None = None,
    ) -> None:
        self._far: Mapping[Place, Far] = dict(far.items())
        self._store = store
        self._power = power
        self._clock = clock or SystemClock()
        self._policies = policies_by_name(placement.policy, placement.policies)
        self._watts = max(0.0, placement.busy_watts - placement.idle_watts) if placement.busy_watts else None
        self._budget = Budget(
            store, daily_bytes=placement.daily_bytes, daily_price=placement.daily_price, clock=self._clock
        )
        self._spending = asyncio.Lock()
        self._stays = Stays()
        self.experience = Experience({where: one.meter for where, one in self._far.items()}, self._clock)
        self._recalled = asyncio.Lock()
        self._new = True
        store.learner = self.experience.ended

    async def plan(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        """See `pipeline.plan.Planner.plan`.

        Raises:
            StorageError: The plan cannot be stored and would spend of a budget; any other one is followed all the same.
        """
        await self._recall()
        if not self._budget.limited:
            return await self._plan_and_store(errand, demands)
        async with self._spending:  # what one plan takes, the next one must see
            return await self._plan_and_store(errand, demands)

    async def _plan_and_store(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        plan = self._plan(errand, demands, await self._budget.left(), take=True)
        self.experience.began(errand, demands, plan)  # before anything is waited for: the next plan must know of it
        try:
            await self._store.planned(errand, ", ".join(dict.fromkeys(demand.model for demand in demands)), plan)
        except StorageError as error:
            if self._budget.limited and any(decision.where == "cloud" for decision in plan.decisions):
                self.experience.forget(errand)
                raise
            log.warning("plan_not_stored", request_id=errand.id, reason=error.message)
        except BaseException:
            self.experience.forget(errand)
            raise
        return plan

    async def _recall(self) -> None:
        """Before the first plan: what was learned until the last restart."""
        async with self._recalled:
            if not self._new:
                return
            try:
                self.experience.recall(await self._store.lessons(_LESSONS_EACH, _LESSONS_AMONG))
            except StorageError as error:
                log.warning("lessons_not_read", reason=error.message)
            self._new = False

    async def explain(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        await self._recall()
        return replace(self._plan(errand, demands, await self._budget.left(), take=False), id=None)

    def _plan(self, errand: Errand, demands: Sequence[Demand], left: Left, *, take: bool) -> Plan:
        decisions = []
        policy = None
        for demand in demands:
            weighed = self._weigh(errand, demand, left)
            policy = policy or weighed.policy
            decision = self._decide(errand, demand, weighed, take=take)
            decisions.append(decision)
            left = left.less(decision.predicted) if decision.where == "cloud" else left
        return Plan(tuple(decisions), id=errand.id, policy=policy, watts=self._watts, measured=self._measured())

    # --- one stage -------------------------------------------------------------------------------------------------------

    def _weigh(self, errand: Errand, demand: Demand, left: Left) -> Weighed:
        """Every place, with what is known of it."""
        policy = self._policies.of(errand, demand)
        options = []
        strain = self._strain()
        tokens = self.experience.answer_tokens(errand, demand)
        work = work_of(demand, tokens, self.experience.fresh(errand, demand))
        places = [self._here(demand, work), *(self._there(errand, demand, work, where, left) for where in self._far)]
        reasons = [ruled_out(errand, demand, policy, sight) for sight, _ in places]
        curious = may_try(errand, [sight for (sight, _), why in zip(places, reasons, strict=True) if why is None])
        for (sight, margin_s), why in zip(places, reasons, strict=True):
            assert sight.predicted is not None
            new = curious and sight.predicted.total_s is None and self.experience.curious(demand, sight.where)
            unknown_s = 0.0 if new else UNKNOWN_S
            cost = score(policy, sight.where, sight.predicted, margin_s, strain=strain, unknown_s=unknown_s)
            options.append(Option(sight, why, None if why else cost, new))
        return Weighed(policy, tuple(options))

    def _decide(self, errand: Errand, demand: Demand, weighed: Weighed, *, take: bool) -> Decision[Any]:
        choose = self._stays.take if take else self._stays.peek
        chosen, decision = decide(errand, demand, weighed, choose, self._clock.monotonic())
        engine = self._engine(errand, demand, chosen.where, weighed) if take else None
        return replace(decision, engine=engine)

    def _here(self, demand: Demand, work: Work) -> tuple[Sight, float]:
        predicted = local_prediction(self.experience.expect(demand, "local", work, 0.0), demand, work, self._watts)
        return Sight(where="local", predicted=predicted), 0.0

    def _there(self, errand: Errand, demand: Demand, work: Work, where: Place, left: Left) -> tuple[Sight, float]:
        """A place elsewhere, and by how much it may be later than expected."""
        elsewhere, meter = self._far[where].elsewhere, self._far[where].meter
        info = elsewhere.info
        capability = matching(demand, info)
        up, down = self.experience.traffic(demand, *traffic_of(demand, work.tokens))
        link = meter.view()
        transfer_s = link.transfer_s(up, down)
        queue_s = 0.0 if info is None else info.queue_s.get(errand.priority.label, 0.0)
        expected = self.experience.expect(demand, where, work, transfer_s)
        if expected is None and capability is not None:
            expected = told_pace(capability, demand, work, queue_s, transfer_s)
        most_tokens = self.experience.answer_tokens(errand, demand, most=True)
        predicted = far_prediction(
            expected,
            demand,
            capability,
            work,
            traffic=(up, down),
            most_bytes=self.experience.most_bytes(demand, *traffic_of(demand, most_tokens)),
            most_tokens=most_tokens,
            powered=self._watts is not None,
        )
        unforeseen_s = 0.0 if expected is None else max(0.0, queue_s - expected.queue_s)
        sight = Sight(
            where=where,
            link=elsewhere.link,
            info=info,
            capability=capability,
            left=left if where == "cloud" else NOTHING_LIMITED,
            predicted=predicted,
        )
        return sight, margin_of(link, up, down) + unforeseen_s

    def _engine(self, errand: Errand, demand: Demand, where: Place, weighed: Weighed) -> Any:
        """The one way from a decision to an engine. None leads elsewhere without a clearance, which only the label gives."""
        ready = sorted(
            (one for one in weighed.options if one.where != "local" and one.why is None),
            key=lambda one: one.cost or 0.0,
        )
        for option in ready:
            if where not in ("local", option.where):
                continue
            clearance = _LEAVE[option.where](errand.privacy)
            capability, elsewhere = option.sight.capability, self._far[option.where].elsewhere
            if clearance is not None and capability is not None:
                ask = elsewhere.backed if where == "local" else elsewhere.engine
                return ask(clearance, demand, capability)
        if where != "local":
            raise NoPlace(f"'{demand.model}' cannot run on the {where}: {weighed.option(where).why}")
        return demand.local

    def _measured(self) -> dict[str, float | bool | str | None]:
        """What the links and the device are like, for whoever wants to understand a plan."""
        power = self._power.read()
        links = {where: far.meter.view() for where, far in self._far.items()}
        told: dict[str, float | bool | str | None] = {}
        for where, link in links.items():
            name = "" if where == "cloud" else f"{where}_"
            told[f"{name}round_trip_ms"] = _rounded(link.round_trip_s, 1000.0)
            told[f"{name}round_trip_p90_ms"] = _rounded(link.round_trip_p90_s, 1000.0)
            told[f"{name}up_bits_per_s"] = _rate(link.up_s_per_byte)
            told[f"{name}down_bits_per_s"] = _rate(link.down_s_per_byte)
        return told | {
            "hottest_c": power.hottest_c,
            "margin_c": power.margin_c,
            "on_battery": power.on_battery,
            "charge": power.charge,
            "profile": power.profile,
        }

    def _strain(self) -> Strain:
        state = self._power.read()
        hot = state.margin_c is not None and state.margin_c <= _HOT_MARGIN_C
        return Strain(hot=hot, battery=bool(state.on_battery), cost=state.cost)


def _rounded(value: float | None, unit: float) -> float | None:
    return None if value is None else round(value * unit, 3)


def _rate(seconds_per_byte: float | None) -> float | None:
    return None if not seconds_per_byte else round(8.0 / seconds_per_byte)
