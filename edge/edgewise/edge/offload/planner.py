"""A planner until placement has its own: the cloud wherever the label allows it and the cloud has the very same model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgewise.core.privacy import clearance_of
from edgewise.edge.offload.cloud import Cloud
from edgewise.pipeline.plan import Decision, Demand, Errand, Plan


class PreferCloud:
    """See `pipeline.plan.Planner`."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    async def plan(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        return Plan(tuple(self._decide(errand, demand) for demand in demands))

    async def explain(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        return await self.plan(errand, demands)

    def _decide(self, errand: Errand, demand: Demand) -> Decision[Any]:
        clearance, info = clearance_of(errand.privacy), self._cloud.info
        models = () if info is None or not self._cloud.link.up else info.models
        found = next((one for one in models if one.model == demand.model and one.digest in (None, demand.digest)), None)
        if clearance is None or found is None:
            reason = "The label keeps it here." if clearance is None else "The cloud does not have this model now."
            return Decision(stage=demand.stage, where="local", reason=reason, engine=demand.local)
        engine = self._cloud.engine(clearance, demand, found)
        return Decision(stage=demand.stage, where="cloud", reason="The cloud has the same model.", engine=engine)
